"""Floodmark on Spark: sessions, and watermarks that Spark's own operators close on."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from floodmark._util.times import Duration
    from floodmark.spark._ingest_job import ingest_job
    from floodmark.spark._late_rows import late
    from floodmark.spark._marks import Operators, follow_marks
    from floodmark.spark._read_closed import read_closed
    from floodmark.spark._read_stream import LateRows, read_bindings, read_stream, window
    from floodmark.spark._read_topics import read_topics
    from floodmark.spark._session import Setting, session
    from floodmark.spark._settings import Late
    from floodmark.spark._watermark import with_watermark
    from floodmark.spark._write_stream import write_stream

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
    "Late": "floodmark.spark._settings",
    "LateRows": "floodmark.spark._read_stream",
    "Operators": "floodmark.spark._marks",
    "Setting": "floodmark.spark._session",
    "follow_marks": "floodmark.spark._marks",
    "ingest_job": "floodmark.spark._ingest_job",
    "late": "floodmark.spark._late_rows",
    "read_bindings": "floodmark.spark._read_stream",
    "read_closed": "floodmark.spark._read_closed",
    "read_stream": "floodmark.spark._read_stream",
    "read_topics": "floodmark.spark._read_topics",
    "session": "floodmark.spark._session",
    "window": "floodmark.spark._read_stream",
    "with_watermark": "floodmark.spark._watermark",
    "write_stream": "floodmark.spark._write_stream",
}


def __getattr__(name: str) -> Any:
    # Each process that Spark starts for a query imports this first, and waits for no more than it needs.
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
