"""Floodmark on Spark: sessions, and watermarks that Spark's own operators close on."""

from floodmark.spark._durations import Duration
from floodmark.spark._marks import Operators, follow_marks
from floodmark.spark._session import Setting, session
from floodmark.spark._watermark import with_watermark

__all__ = ["Duration", "Operators", "Setting", "follow_marks", "session", "with_watermark"]
