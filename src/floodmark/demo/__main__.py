"""Runs the demo."""

import sys

from floodmark.demo.comparison import main

sys.exit(main())
