"""The marks log of a stream and key in a home behind a service."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._entries import MarkEntry
from floodmark.streams.remote._client import Client
from floodmark.streams.remote._requests import Request

T = TypeVar("T")

MOST_ENTRIES: Final = 10_000
"""How many entries a service gives in one answer."""


class RemoteMarks:
    """Looks entries up by way of a service, which has an index."""

    __slots__ = ("_client", "_key", "_stream")

    def __init__(self, client: Client, stream: StreamInfo, key: str) -> None:
        """Look up those of this stream and key."""
        self._client = client
        self._stream = stream
        self._key = key

    def newest(self) -> MarkEntry | None:
        """Return the last watermark."""
        return self._find("newest")

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `lower` is not above `time`."""
        return self._find("newest-with-lower-at-most", time)

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the first watermark whose `lower` is not below `time`."""
        return self._find("oldest-with-lower-at-least", time)

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the last watermark whose `upper` is not above `time`."""
        return self._find("newest-with-upper-at-most", time)

    def numbers(self) -> range:
        """Return the numbers of all entries that are kept."""
        return self._get(_numbers, "numbers")

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number."""
        return self._get(lambda value: MarkEntry.load(value["entry"]), number)

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return entries in their order, from behind a number on."""
        entries: list[MarkEntry] = []
        while len(entries) < most:
            wanted = min(most - len(entries), MOST_ENTRIES)
            found = self._get(_entries, after=after, most=wanted)
            entries += found
            if len(found) < wanted:
                break
            after = entries[-1].seq
        return entries

    def _find(self, by: str, time: int | None = None) -> MarkEntry | None:
        return self._get(_found, "find", by=by, time=time)

    def _get(self, load: Callable[[Any], T], *parts: str | int, **query: str | int | None) -> T:
        wanted = {"key": self._key, **query}
        return self._client.call(Request.about(self._stream, "GET", "entries", *parts, query=wanted), load)


def _numbers(value: Any) -> range:
    return range(value["first"], value["last"] + 1) if value["last"] else range(0)


def _entries(value: Any) -> list[MarkEntry]:
    return [MarkEntry.load(one) for one in value["entries"]]


def _found(value: Any) -> MarkEntry | None:
    return None if value["entry"] is None else MarkEntry.load(value["entry"])
