"""What tasks tell the driver: a value, or what went wrong. An error is a value here.

Spark would try a task again that raises, and bury what it has said.
"""

import pickle
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from floodmark.errors import FloodmarkError, SourceFailed

RESULT: Final = "result BINARY"


def tried(what: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """Return what a call gives, or what it raises, as an error of Floodmark's."""
    try:
        return what(), None
    except FloodmarkError as error:
        return None, error
    except Exception as error:
        return None, SourceFailed(
            f"A task has failed: {type(error).__name__}: {error}.",
            rule="A cell is read and written as a whole.",
            remedy="It stays due; if it fails again, see what the source and the disk of the workers say.",
        )


def packed_result(result: Any) -> pa.RecordBatch:
    """Return a value as a row for the driver."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], ["result"])
