"""Lets Spark find the format "floodmark" by itself: it looks for `DefaultSource` in modules of this kind of name."""

from floodmark.spark.source.stream_reader import FloodmarkSource as DefaultSource

__all__ = ["DefaultSource"]
