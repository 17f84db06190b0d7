"""The streams of a home behind a service."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from floodmark.errors import Conflict, StreamDeleted
from floodmark.streams._catalog import StreamInfo, check_not_sealed, new_stream_id
from floodmark.streams._layout import Layout
from floodmark.streams._scaling import check_segment_count
from floodmark.streams._settings import StreamSettings, altered
from floodmark.streams._stream_names import check_stream_name
from floodmark.streams.remote._client import Client
from floodmark.streams.remote._forms import load_stream
from floodmark.streams.remote._requests import STREAMS, VERSION, Request


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
        return self._client.call(Request("POST", STREAMS, body=json.dumps(value)), self._seen)

    def find(self, name: str) -> StreamInfo:
        """Return the stream of a name, or refuse a name that none has."""
        return self._client.call(Request("GET", f"{VERSION}/stream", {"name": name}), self._seen)

    def all(self) -> list[StreamInfo]:
        """Return all streams that may be seen, by their names."""
        return self._client.call(Request("GET", STREAMS), lambda value: [self._seen(one) for one in value["streams"]])

    def refresh(self, stream: StreamInfo) -> StreamInfo:
        """Return what the stream is now."""
        return self._client.call(Request.about(stream, "GET"), self._seen)

    def newest_known(self, stream: StreamInfo) -> StreamInfo:
        """Return the newest that this client has seen of the stream; others may have changed it since."""
        known = self._newest.get(stream.id, stream)
        return known if known.version > stream.version else stream

    def alter(self, stream: StreamInfo, changes: Mapping[str, Any]) -> StreamInfo:
        """Change settings."""
        wanted = altered(stream.settings, changes).save()
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
