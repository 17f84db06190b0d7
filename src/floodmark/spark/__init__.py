"""The data plane: everything that touches Spark, and the only part that imports pyspark."""

from floodmark.spark._marks import follow_marks
from floodmark.spark._session import session

__all__ = ["follow_marks", "session"]
