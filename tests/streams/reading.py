"""What tests read out of streams."""

import json
from typing import Any

from floodmark.errors import FloodmarkError
from floodmark.streams import Stream


def rows(stream: Stream, segment: int) -> list[dict[str, Any]]:
    """Return the events of a segment; the offsets must follow each other from 0 on."""
    found: list[dict[str, Any]] = []
    for chunk in stream.read(segment):
        assert chunk.first == len(found)
        found += chunk.batch.to_pylist()
        assert chunk.end == len(found)
    return found


def payloads(stream: Stream, segment: int) -> list[Any]:
    return [json.loads(row["payload"]) for row in rows(stream, segment)]


def everything(stream: Stream) -> list[Any]:
    """Return all payloads, segments in the order in which they are read: predecessors first."""
    return [event for segment in stream.layout.segments for event in payloads(stream, segment.id)]


def code_of(action: Any) -> str | None:
    """Return the code of the error that an action ends with, if it does."""
    try:
        action()
    except FloodmarkError as error:
        return error.code
    return None
