"""Floodmark: event-time progress that PySpark pipelines can trust.

Programs call the functions listed here (`import floodmark as fm; fm.session()`); each is imported when it is first
used, so `import floodmark` is fast and needs no pyspark. `connect` opens a home without Spark.

The rooms, from the bottom up: `progress` has the pure rules of watermarks; `control` is the metadata store; `kafka` and
`delta` are the clients; `streams`, `bindings`, `sinks` and `ingest` build on them; `service` (HTTP) and `spark` expose
them; `cli` is the command line; `testing` helps to test programs; `errors` has every exception. Start reading at
`streams` or `spark`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floodmark.spark import (
        falling_marks,
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

__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("floodmark")
    if name == "connect":
        from floodmark.streams import connect

        return connect
    if name in __all__:
        return getattr(import_module("floodmark.spark"), name)
    if name in _rooms():
        try:
            return import_module(f"floodmark.{name}")
        except ImportError as error:
            raise AttributeError(f"floodmark.{name} cannot be imported: {error}") from error
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_rooms()])


def _rooms() -> set[str]:
    from pkgutil import iter_modules  # Takes as long to import as the rest of this module.

    return {module.name for module in iter_modules(__path__) if not module.name.startswith("_")}
