"""The writers of streams in a home behind a service."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._log import Author, Opened
from floodmark.streams._positions import Position, save_position
from floodmark.streams._settling import Note, Settled
from floodmark.streams._writers import MarkOutcome
from floodmark.streams.remote._client import Client
from floodmark.streams.remote._forms import load_opened
from floodmark.streams.remote._refusals import load_error
from floodmark.streams.remote._requests import VERSION, Request


class RemoteRegistry:
    """Tells a service what writers say."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> Opened:
        """Open a writer, new or known."""
        value = {"writer": writer, "keys": list(keys)}
        return self._client.call(Request.about(stream, "POST", "writers", value=value), load_opened)

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Take a mark, or say why not."""
        value = _mark(author, key, time, position)
        return self._client.call(Request.about(stream, "POST", "marks", value=value), _outcome)

    def note_many(self, notes: Sequence[Note]) -> list[Settled]:
        """Take many marks in one request, and return for each what became of it, or its error."""
        marks = [
            {"stream": note.stream.id, "name": note.stream.name}
            | _mark(note.author, note.key, note.time, note.position)
            for note in notes
        ]
        request = Request("POST", f"{VERSION}/marks", body=json.dumps({"marks": marks}))
        return self._client.call(request, lambda value: [_settled(one) for one in value["results"]])

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes for now."""
        self._client.call(Request.about(stream, "POST", "writers", "idle", value=_word(author, position)), dict)

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes any more."""
        self._client.call(Request.about(stream, "POST", "writers", "close", value=_word(author, position)), dict)


def _outcome(value: Any) -> MarkOutcome:
    return MarkOutcome(value["outcome"])


def _settled(value: Any) -> Settled:
    return _outcome(value) if value["error"] is None else load_error(value["error"], 409)


def _word(author: Author, position: Position) -> dict[str, Any]:
    return {"writer": author.writer, "instance": author.instance, "position": save_position(position)}


def _mark(author: Author, key: str, time: int, position: Position) -> dict[str, Any]:
    return {**_word(author, position), "key": key, "time": time}
