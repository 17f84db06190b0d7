"""The stream that a group was created on, as it is now; not another one that has its name."""

from typing import Protocol

from floodmark.errors import StreamDeleted, UnknownStream
from floodmark.streams._catalog import StreamInfo
from floodmark.streams.readers._state import StreamPart


class FindsStreams(Protocol):
    """A catalog."""

    def find(self, name: str) -> StreamInfo:
        """Return the stream of a name."""


def find_stream(catalog: FindsStreams, part: StreamPart) -> StreamInfo:
    """Return the stream that a group reads, or say that it is gone."""
    try:
        found = catalog.find(part.name)
        is_anew = found.id != part.stream_id
    except UnknownStream:
        is_anew = False
    else:
        if not is_anew:
            return found
    raise StreamDeleted(
        f"The stream {part.name!r} was deleted{', and created anew' if is_anew else ''}.",
        rule="A group reads the stream that it was created on.",
        remedy="Delete the group, and create one on the new stream." if is_anew else "Delete the group.",
        stream=part.name,
        created_anew=is_anew,
    )
