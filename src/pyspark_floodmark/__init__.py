"""Lets Spark find the format "floodmark" by itself: it looks for `DefaultSource` in modules of this kind of name."""

from floodmark.spark._stream_source import StreamSource as DefaultSource

__all__ = ["DefaultSource"]
