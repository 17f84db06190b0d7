"""The streams and events of a home behind a service."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from urllib3.exceptions import HTTPError

from floodmark.errors import Conflict, RequestTooLarge, ServiceUnavailable, StreamDeleted
from floodmark.streams.definition import (
    StreamInfo,
    StreamSettings,
    alter_settings,
    check_not_sealed,
    check_stream_name,
    new_stream_id,
)
from floodmark.streams.events import Events
from floodmark.streams.layout.layout import Layout, check_segment_count
from floodmark.streams.layout.positions import load_position
from floodmark.streams.ports import Author, Chunk
from floodmark.streams.remote.client import Client, Query, Request
from floodmark.streams.remote.wire import API_PREFIX, ARROW, STREAMS_PATH, load_stream, pack_events, unpack_chunks


class RemoteCatalog:
    """The streams that the client's token covers."""

    __slots__ = ("_cache", "_client")

    def __init__(self, client: Client) -> None:
        """Use this client."""
        self._client = client
        self._cache: dict[int, StreamInfo] = {}

    def create(self, name: str, settings: StreamSettings, segments: int = 1) -> StreamInfo:
        """Create a stream under an unused name."""
        value = {
            "name": check_stream_name(name),
            # Chosen here, so that a retry after a lost answer is idempotent.
            "id": new_stream_id(),
            "segments": check_segment_count(segments),
            "settings": settings.save(),
        }
        return self._client.call(Request("POST", STREAMS_PATH, body=json.dumps(value)), self._load_stream)

    def find(self, name: str) -> StreamInfo:
        """Return the stream with a name, or raise `UnknownStream`."""
        return self._client.call(Request("GET", f"{API_PREFIX}/stream", {"name": name}), self._load_stream)

    def all(self) -> list[StreamInfo]:
        """Return the visible streams, sorted by name."""
        return self._client.call(
            Request("GET", STREAMS_PATH), lambda value: [self._load_stream(saved) for saved in value["streams"]]
        )

    def refresh(self, stream: StreamInfo) -> StreamInfo:
        """Return the current state of the stream."""
        return self._client.call(Request.about(stream, "GET"), self._load_stream)

    def newest_known(self, stream: StreamInfo) -> StreamInfo:
        """Return the newest version of the stream that this client has seen."""
        cached = self._cache.get(stream.id, stream)
        return cached if cached.version > stream.version else stream

    def alter(self, stream: StreamInfo, changes: Mapping[str, Any]) -> StreamInfo:
        """Change settings."""
        # A schema is compared with the current one: another client may have added columns.
        current = self.refresh(stream) if "schema" in changes else stream
        settings = alter_settings(current.settings, changes).save()
        value = {name: settings.get(name) for name in changes}
        return self._client.call(Request.about(stream, "PATCH", value=value), self._load_stream)

    def delete(self, stream: StreamInfo) -> None:
        """Delete the stream, its events and its marks."""
        answer = self._client.ask(Request.about(stream, "DELETE"))
        self._cache.pop(stream.id, None)
        if answer.was_repeated and isinstance(answer.refusal, StreamDeleted):
            # An earlier attempt deleted it, and its answer was lost.
            return
        answer.unwrap()

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open their successors, computing the change from the current layout."""
        was_repeated = False
        target: Layout | None = None
        while True:
            current = self.refresh(stream)
            if was_repeated and target is not None and _descends_from(current.layout, target):
                return current
            check_not_sealed(current)
            target = change(current.layout)
            answer = self._client.ask(
                Request.about(stream, "POST", "scale", value=_replacement(current.layout, target))
            )
            was_repeated = answer.was_repeated
            if isinstance(answer.refusal, Conflict) and "epoch" in answer.refusal.fields:
                continue
            return self._client.load(answer.unwrap(), self._load_stream)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal the stream."""
        return self._client.call(Request.about(stream, "POST", "seal"), self._load_stream)

    def _load_stream(self, saved: Mapping[str, Any]) -> StreamInfo:
        stream = load_stream(saved)
        cached = self._cache.get(stream.id)
        if cached is None or cached.version <= stream.version:
            self._cache[stream.id] = stream
        return stream


def _replacement(before: Layout, after: Layout) -> dict[str, Any]:
    """Return the scale request that leads from one layout to the next."""
    sealed = [segment.id for segment in before.current if after.is_sealed(segment.id)]
    opened = [[segment.low, segment.high] for segment in after.segments[len(before.segments) :]]
    return {"epoch": before.epoch, "seal": sealed, "ranges": opened}


def _descends_from(current: Layout, target: Layout) -> bool:
    """Return whether the current layout is the target layout or a later one that was scaled from it."""
    count = len(target.segments)
    seals = zip(current.sealed_in[:count], target.sealed_in, strict=True) if count <= len(current.segments) else None
    return (
        seals is not None
        and current.segments[:count] == target.segments
        and all(sealed_in == expected for sealed_in, expected in seals if expected is not None)
    )


_MOST_BYTES: Final = 16 * 2**20
"""Bytes of events in a request, even if the service accepts more."""
_NUMBERS_PER_PART: Final = 2**32
_PAUSE_SECONDS: Final = 0.05


class RemoteLog:
    """Writes and reads events through a service."""

    __slots__ = ("_catalog", "_client", "_sent")

    def __init__(self, client: Client, catalog: RemoteCatalog) -> None:
        """Use this client."""
        self._client = client
        self._catalog = catalog
        self._sent: dict[tuple[int, Author, int], tuple[int, dict[int, int]]] = {}

    def append(self, stream: StreamInfo, author: Author, first_number: int, events: Events) -> dict[int, int]:
        """Append events, each once, and return the new ends of their segments.

        Large flushes are split into several requests. A retry continues after the requests that succeeded.
        """
        flush_key = (stream.id, author, first_number)
        done, ends = self._sent.pop(flush_key, (0, {}))
        try:
            for start, piece in _send_pieces(events, done, self._append_sender(stream, author, first_number, ends)):
                done = start + len(piece)
        except BaseException:
            if done:
                self._sent[flush_key] = (done, ends)
            raise
        return ends

    def ends(self, stream: StreamInfo) -> dict[int, int]:
        """Return the end of each segment, sealed ones included."""
        return self._client.call(Request.about(stream, "GET", "ends"), _load_ends)

    def starts(self, stream: StreamInfo) -> dict[int, int]:
        """Return the start of each segment from which retention has removed events."""
        # Services of earlier releases have no retention.
        load: Callable[[Any], dict[int, int]] = lambda value: load_position(value.get("starts", {}))  # noqa: E731
        return self._client.call(Request.about(stream, "GET", "ends"), load)

    def read(self, stream: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
        """Return the events of a segment in a range of offsets.

        After a broken connection it continues from the last chunk, with another service if there is one.
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
                self._client.switch(self._client.current())
                time.sleep(0.0 if start > begun else _PAUSE_SECONDS)

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open their successors."""
        return self._catalog.scale(stream, change)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Seal the stream."""
        return self._catalog.seal(stream)

    def add(self, stream: StreamInfo, transaction: str, part: int, events: Events) -> None:
        """Stage events until their transaction is committed. Idempotent for each part."""

        def send(start: int, piece: Events) -> None:
            path = ("transactions", transaction, "parts", part * _NUMBERS_PER_PART + start)
            body = pack_events(piece)
            self._client.call(Request.about(stream, "PUT", *path, body=body, content_type=ARROW), dict)

        for _ in _send_pieces(events, 0, send):
            pass

    def _append_sender(
        self, stream: StreamInfo, author: Author, first_number: int, ends: dict[int, int]
    ) -> Callable[[int, Events], None]:
        def send(start: int, piece: Events) -> None:
            query: Query = {"writer": author.writer, "instance": author.instance, "first": first_number + start}
            body = pack_events(piece)
            request = Request.about(stream, "POST", "events", query=query, body=body, content_type=ARROW)
            ends.update(self._client.call(request, _load_ends))

        return send


def _send_pieces(events: Events, done: int, send: Callable[[int, Events], Any]) -> Iterator[tuple[int, Events]]:
    """Send events in pieces and yield each piece once it is sent. A piece that is too large is halved."""
    event_bytes = max(events.batch.nbytes // max(len(events), 1), 1)
    most = max(_MOST_BYTES // event_bytes, 1)
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


def _load_ends(value: Any) -> dict[int, int]:
    return load_position(value["ends"])


def _cut_off(where: str, segment: int, start: int) -> ServiceUnavailable:
    return ServiceUnavailable(
        f"The connection to {where} breaks whenever segment {segment} is read from offset {start}.",
        rule="A connection must last until at least one batch of events has arrived.",
        remedy="Raise the timeouts of the proxies and load balancers between this process and the services.",
        segment=segment,
        start=start,
    )
