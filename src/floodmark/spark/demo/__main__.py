"""Runs the demo."""

import sys

from floodmark.spark.demo import main

sys.exit(main())
