"""Floodmark on Spark: sessions, watermarks, streams and topics as DataFrames, exactly-once sinks, ingestion jobs.

Only this room and `floodmark.demo` import pyspark; `floodmark.cli` imports this room. Its folders: `watermark` (a
watermark on any DataFrame), `source` (streams and topics), `sink` (exactly-once output) and `ingest` (jobs). Start
reading at `watermark/dataframes.py` or `source/dataframes.py`. Exports are imported when they are first used, because
every Python process that Spark starts for a query imports this package.
"""

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
    from floodmark.spark.watermark.marks import Operators, falling_marks, follow_marks

__all__ = [
    "Duration",
    "Late",
    "LateRows",
    "Operators",
    "Setting",
    "falling_marks",
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

_MODULE_OF: Final = {
    "Duration": "floodmark._util.times",
    "Late": "floodmark.spark.watermark.chain",
    "LateRows": "floodmark.spark.source.dataframes",
    "Operators": "floodmark.spark.watermark.marks",
    "Setting": "floodmark.spark.sessions",
    "falling_marks": "floodmark.spark.watermark.marks",
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
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    if name in _submodules():
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_submodules()])


def _submodules() -> set[str]:
    from pkgutil import iter_modules

    return {module.name for module in iter_modules(__path__)}
