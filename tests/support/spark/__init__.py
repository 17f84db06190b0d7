"""Helpers of tests on Spark: feeds, shops, and the scripts that run as drivers of their own."""

from pathlib import Path

SCRIPTS = Path(__file__).parent
