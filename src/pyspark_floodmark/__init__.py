"""Registers the format "floodmark" with Spark, which looks for `DefaultSource` in packages named `pyspark_*`.

Every Python process that plans a query imports this package, so it imports the source and nothing else.
"""

from floodmark.spark.source.stream_reader import FloodmarkSource as DefaultSource

__all__ = ["DefaultSource"]
