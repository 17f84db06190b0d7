"""The streams of a home behind a service, and their events."""

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
    """All streams of a home that this client may see."""

    __slots__ = ("_client", "_newest")

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client
        self._newest: dict[int, StreamInfo] = {}

    def create(self, name: str, settings: StreamSettings, segments: int = 1) -> StreamInfo:
        """Make a stream under a name that no other has."""
        value = {
            "name": check_stream_name(name),
            # Made here, so that to ask again after a lost answer finds the stream, and no stranger.
            "id": new_stream_id(),
            "segments": check_segment_count(segments),
            "settings": settings.save(),
        }
        return self._client.call(Request("POST", STREAMS_PATH, body=json.dumps(value)), self._seen)

    def find(self, name: str) -> StreamInfo:
        """Return the stream of a name, or refuse a name that none has."""
        return self._client.call(Request("GET", f"{API_PREFIX}/stream", {"name": name}), self._seen)

    def all(self) -> list[StreamInfo]:
        """Return all streams that may be seen, by their names."""
        return self._client.call(
            Request("GET", STREAMS_PATH), lambda value: [self._seen(one) for one in value["streams"]]
        )

    def refresh(self, stream: StreamInfo) -> StreamInfo:
        """Return what the stream is now."""
        return self._client.call(Request.about(stream, "GET"), self._seen)

    def newest_known(self, stream: StreamInfo) -> StreamInfo:
        """Return the newest that this client has seen of the stream; others may have changed it since."""
        known = self._newest.get(stream.id, stream)
        return known if known.version > stream.version else stream

    def alter(self, stream: StreamInfo, changes: Mapping[str, Any]) -> StreamInfo:
        """Change settings."""
        wanted = alter_settings(stream.settings, changes).save()
        value = {name: wanted[name] for name in changes}
        return self._client.call(Request.about(stream, "PATCH", value=value), self._seen)

    def delete(self, stream: StreamInfo) -> None:
        """Forget the stream, its events and its marks."""
        answer = self._client.ask(Request.about(stream, "DELETE"))
        self._newest.pop(stream.id, None)
        if answer.was_repeated and isinstance(answer.refusal, StreamDeleted):
            # It was deleted by the try whose answer was lost.
            return
        answer.taken()

    def scale(self, stream: StreamInfo, change: Callable[[Layout], Layout]) -> StreamInfo:
        """Seal segments and open others in their place. What is to be done is made of the layout that holds then."""
        was_repeated = False
        wanted: Layout | None = None
        while True:
            now = self.refresh(stream)
            if was_repeated and wanted is not None and _has_become(now.layout, wanted):
                return now
            check_not_sealed(now)
            wanted = change(now.layout)
            answer = self._client.ask(Request.about(stream, "POST", "scale", value=_replacement(now.layout, wanted)))
            was_repeated = answer.was_repeated
            if isinstance(answer.refusal, Conflict) and "epoch" in answer.refusal.fields:
                continue
            return self._client.loaded(answer.taken(), self._seen)

    def seal(self, stream: StreamInfo) -> StreamInfo:
        """Let the stream take no more events."""
        return self._client.call(Request.about(stream, "POST", "seal"), self._seen)

    def _seen(self, saved: Mapping[str, Any]) -> StreamInfo:
        stream = load_stream(saved)
        known = self._newest.get(stream.id)
        if known is None or known.version <= stream.version:
            self._newest[stream.id] = stream
        return stream


def _replacement(before: Layout, after: Layout) -> dict[str, Any]:
    """Return the step from one layout to the next."""
    going = [segment.id for segment in before.current if after.is_sealed(segment.id)]
    coming = [[segment.low, segment.high] for segment in after.segments[len(before.segments) :]]
    return {"epoch": before.epoch, "seal": going, "ranges": coming}


def _has_become(now: Layout, wanted: Layout) -> bool:
    """Return whether a layout came out of the one that was wanted, or is it."""
    known = len(wanted.segments)
    seals = zip(now.sealed_in[:known], wanted.sealed_in, strict=True) if known <= len(now.segments) else None
    return (
        seals is not None
        and now.segments[:known] == wanted.segments
        and all(is_now == was_wanted for is_now, was_wanted in seals if was_wanted is not None)
    )


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
