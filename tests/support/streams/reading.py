"""What tests read out of streams."""

import json
from typing import Any

from floodmark.errors import FloodmarkError
from floodmark.streams import Stream


def rows(stream: Stream, segment: int) -> list[dict[str, Any]]:
    """Return the events of a segment; the offsets must follow each other from 0 on."""
    found: list[dict[str, Any]] = []
    offset = 0
    for chunk in stream.read(segment):
        # In Kafka the end of each transaction takes an offset too.
        assert chunk.first == offset or (stream.info.log is not None and chunk.first > offset)
        found += chunk.batch.to_pylist()
        offset = chunk.end
    assert len(found) == offset or stream.info.log is not None
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
