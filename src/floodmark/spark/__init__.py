"""Floodmark on Spark: sessions, and watermarks that Spark's own operators close on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from floodmark._util.times import Duration
    from floodmark.spark.ingest.job import ingest_job
    from floodmark.spark.sessions import Setting, session
    from floodmark.spark.sink.closed_rows import read_closed
    from floodmark.spark.sink.query import write_stream
    from floodmark.spark.source.dataframes import LateRows, read_bindings, read_stream, read_topics, window
    from floodmark.spark.watermark.chain import Late
    from floodmark.spark.watermark.dataframes import late, with_watermark
    from floodmark.spark.watermark.marks import Operators, follow_marks

__all__ = [
    "Duration",
    "Late",
    "LateRows",
    "Operators",
    "Setting",
    "follow_marks",
    "ingest_job",
    "late",
    "read_bindings",
    "read_closed",
    "read_stream",
    "read_topics",
    "session",
    "window",
    "with_watermark",
    "write_stream",
]

_PLACES: Final = {
    "Duration": "floodmark._util.times",
    "Late": "floodmark.spark.watermark.chain",
    "LateRows": "floodmark.spark.source.dataframes",
    "Operators": "floodmark.spark.watermark.marks",
    "Setting": "floodmark.spark.sessions",
    "follow_marks": "floodmark.spark.watermark.marks",
    "ingest_job": "floodmark.spark.ingest.job",
    "late": "floodmark.spark.watermark.dataframes",
    "read_bindings": "floodmark.spark.source.dataframes",
    "read_closed": "floodmark.spark.sink.closed_rows",
    "read_stream": "floodmark.spark.source.dataframes",
    "read_topics": "floodmark.spark.source.dataframes",
    "session": "floodmark.spark.sessions",
    "window": "floodmark.spark.source.dataframes",
    "with_watermark": "floodmark.spark.watermark.dataframes",
    "write_stream": "floodmark.spark.sink.query",
}


def __getattr__(name: str) -> Any:
    # Each process that Spark starts for a query imports this first, and waits for no more than it needs.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
