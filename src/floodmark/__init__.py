"""Floodmark: event-time progress that PySpark pipelines can trust.

The rooms: `floodmark.progress` holds the pure rules, `floodmark.streams` has streams whose writers note time,
`floodmark.kafka` knows topics, records and values, `floodmark.delta` commits to tables, `floodmark.bindings` gives
every offset of a source a timestamp that stays, `floodmark.sinks` writes once, `floodmark.ingest` plans what a job
reads, `floodmark.extract` reads it and `floodmark.landing` lands it, `floodmark.spark` brings them to Spark,
`floodmark.testing` helps to test what is built on them, `floodmark.errors` is the one tree of errors. What touches
Spark, and `connect`, can also be called from here (`import floodmark as fm; fm.session()`), and is loaded when it is
first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floodmark.spark import (
        follow_marks,
        ingest_job,
        late,
        read_bindings,
        read_closed,
        read_stream,
        read_topics,
        session,
        window,
        with_watermark,
        write_stream,
    )
    from floodmark.streams import connect

__all__ = [
    "__version__",
    "connect",
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

__version__: str


def __getattr__(name: str) -> Any:
    # Without this, whoever only wants the rules would wait for pyspark, and for what reads a version.
    if name == "__version__":
        from importlib.metadata import version

        return version("floodmark")
    if name == "connect":
        from floodmark.streams import connect

        return connect
    if name in __all__:
        return getattr(import_module("floodmark.spark"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
