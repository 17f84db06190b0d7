"""The events of streams in a home behind a service."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from urllib3.exceptions import HTTPError

from floodmark.errors import RequestTooLarge, ServiceUnavailable
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._events import Events
from floodmark.streams._layout import Layout
from floodmark.streams._log import Author, Chunk
from floodmark.streams._positions import load_position
from floodmark.streams.remote._arrow import ARROW, pack_events, unpack_chunks
from floodmark.streams.remote._catalog import RemoteCatalog
from floodmark.streams.remote._client import Client
from floodmark.streams.remote._requests import Query, Request

_MOST_BYTES: Final = 16 * 2**20
"""A request has about so many bytes of events, whatever the service takes."""
_PART: Final = 2**32
_PAUSE_SECONDS: Final = 0.05


class RemoteLog:
    """Keeps and reads events by way of a service."""

    __slots__ = ("_catalog", "_client", "_sent")

    def __init__(self, client: Client, catalog: RemoteCatalog) -> None:
        """Ask by way of this client."""
        self._client = client
        self._catalog = catalog
        self._sent: dict[tuple[int, Author, int], tuple[int, dict[int, int]]] = {}

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Keep events, each once, and return how far the segments they went to are filled by them.

        More than fit in a request go in several. If one of these fails, to do it again goes on behind those before it.
        """
        task = (stream.id, author, first_number)
        done, ends = self._sent.pop(task, (0, {}))
        try:
            for start, piece in _pieces(events, done, self._append(stream, author, first_number, ends)):
                done = start + len(piece)
        except BaseException:
            if done:
                self._sent[task] = (done, ends)
            raise
        return ends

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included."""
        return self._client.call(Request.about(stream, "GET", "ends"), _ends)

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment from one offset to before another, as far as they are there.

        What was cut off is asked for again from where it had come to, of another service if there is one.
        """
        give_up: float | None = None
        while True:
            begun = start
            query: Query = {"start": start, "end": end}
            request = Request.about(stream, "GET", "segments", segment, "events", query=query)
            try:
                with self._client.reading(request) as source:
                    for chunk in unpack_chunks(source, segment):
                        yield chunk
                        start = chunk.end
                return
            except (HTTPError, pa.ArrowException, OSError) as error:
                if start == begun and give_up is not None and time.monotonic() > give_up:
                    raise _cut_off(str(self._client.addresses), segment, start) from error
                if start > begun or give_up is None:
                    give_up = time.monotonic() + self._client.budget
                self._client.go_on(self._client.current())
                time.sleep(0.0 if start > begun else _PAUSE_SECONDS)

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open those that take their place."""
        return self._catalog.scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Let the stream take no more events."""
        return self._catalog.seal(stream)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Keep events apart until their transaction is committed. A part that comes twice is kept once."""

        def send(start: int, piece: Events) -> None:
            place = ("transactions", transaction, "parts", part * _PART + start)
            body = pack_events(piece)
            self._client.call(Request.about(stream, "PUT", *place, body=body, content_type=ARROW), dict)

        for _ in _pieces(events, 0, send):
            pass

    def _append(
        self, stream: StreamInfo, author: Author, first_number: int, ends: dict[int, int]
    ) -> Callable[[int, Events], None]:
        def send(start: int, piece: Events) -> None:
            query: Query = {"writer": author.writer, "instance": author.instance, "first": first_number + start}
            body = pack_events(piece)
            request = Request.about(stream, "POST", "events", query=query, body=body, content_type=ARROW)
            ends.update(self._client.call(request, _ends))

        return send


def _pieces(events: Events, done: int, send: Callable[[int, Events], Any]) -> Iterator[tuple[int, Events]]:
    """Send events in pieces, and return each when it has been sent. A piece that is too large is halved."""
    each = max(events.batch.nbytes // max(len(events), 1), 1)
    most = max(_MOST_BYTES // each, 1)
    while done < len(events):
        piece = events.slice(done, most)
        try:
            send(done, piece)
        except RequestTooLarge:
            if len(piece) == 1:
                raise
            most = (len(piece) + 1) // 2
            continue
        yield done, piece
        done += len(piece)


def _ends(value: Any) -> dict[int, int]:
    return load_position(value["ends"])


def _cut_off(where: str, segment: int, start: int) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The services at {where} begin to answer what lies in segment {segment} from {start} on, and are cut off.",
        rule="One of them must be reachable from here until a batch has come.",
        remedy="Look at what lies between them and this process.",
        segment=segment,
        start=start,
    )
