"""Floodmark on Spark: sessions, and watermarks that Spark's own operators close on."""

from floodmark._durations import Duration
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
