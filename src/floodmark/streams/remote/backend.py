"""A home behind one or several services: the ports of a home, each of which asks a service."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from floodmark.streams.definition import StreamInfo
from floodmark.streams.groups.requests import GroupRef, NewGroup, News, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import GroupState
from floodmark.streams.layout.positions import Position, save_position
from floodmark.streams.marks.log import MarkEntry
from floodmark.streams.marks.watermark import WatermarkExplanation
from floodmark.streams.marks.writer_record import MarkOutcome
from floodmark.streams.ports import (
    Author,
    CommitResult,
    MarkRequest,
    OpenedWriter,
    OutcomeOrError,
    TransactionState,
    new_transaction_id,
)
from floodmark.streams.remote.client import BUDGET_SECONDS, Client, Request, check_token, read_addresses
from floodmark.streams.remote.streams import RemoteCatalog, RemoteLog
from floodmark.streams.remote.wire import (
    API_PREFIX,
    GROUPS_PATH,
    MOST_ENTRIES,
    load_commit,
    load_error,
    load_explanation,
    load_opened,
)

TOKEN_VARIABLE: Final = "FLOODMARK_TOKEN"
CA_VARIABLE: Final = "FLOODMARK_CA"


T = TypeVar("T")


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
        return self._get(_load_numbers, "numbers")

    def entry(self, number: int) -> MarkEntry:
        """Return the entry of that number."""
        return self._get(lambda value: MarkEntry.load(value["entry"]), number)

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return entries in their order, from behind a number on."""
        entries: list[MarkEntry] = []
        while len(entries) < most:
            wanted = min(most - len(entries), MOST_ENTRIES)
            found = self._get(_load_entries, after=after, most=wanted)
            entries += found
            if len(found) < wanted:
                break
            after = entries[-1].seq
        return entries

    def _find(self, by: str, time: int | None = None) -> MarkEntry | None:
        return self._get(_load_found, "find", by=by, time=time)

    def _get(self, load: Callable[[Any], T], *parts: str | int, **query: str | int | None) -> T:
        wanted = {"key": self._key, **query}
        return self._client.call(Request.about(self._stream, "GET", "entries", *parts, query=wanted), load)


class RemoteBackend:
    """What is kept in a home that only its services reach."""

    __slots__ = ("_client", "catalog", "groups", "log", "registry", "transactions")

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client
        self.catalog = RemoteCatalog(client)
        self.log = RemoteLog(client, self.catalog)
        self.registry = RemoteRegistry(client)
        self.transactions = RemoteTransactions(client)
        self.groups = RemoteGroups(client)

    def news(self, wanted: Subscription, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""
        return self.groups.news(wanted, seconds)

    def marks(self, stream: StreamInfo, key: str) -> RemoteMarks:
        """Return the marks log of a stream and key."""
        return RemoteMarks(self._client, stream, key)

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key stands where it stands."""
        return self._client.call(Request.about(stream, "GET", "why", query={"key": key}), load_explanation)

    def now(self) -> int:
        """Return the time by the clock of the store."""
        return self._client.call(Request("GET", f"{API_PREFIX}/time"), lambda value: int(value["now"]))

    def wake(self) -> None:
        """Do nothing: the service that heard the writer has told its controller."""

    def close(self) -> None:
        """Let go of all connections."""
        self._client.close()

    def __repr__(self) -> str:
        return f"Service({str(self._client.addresses)!r})"


def open_remote(
    location: str, *, token: str | None = None, ca: str | Path | None = None, budget: float = BUDGET_SECONDS
) -> RemoteBackend:
    """Return the home behind the services at a location; nothing is asked of them yet.

    Without a token or a file with authorities, the environment may name them: FLOODMARK_TOKEN and FLOODMARK_CA.

    >>> open_remote("http://127.0.0.1:8787,127.0.0.1:8788", token="fmk_0123456789ab_secret")
    Service('http://127.0.0.1:8787,http://127.0.0.1:8788')
    """
    given = token if token is not None else os.environ.get(TOKEN_VARIABLE) or None
    authorities = ca if ca is not None else os.environ.get(CA_VARIABLE) or None
    return RemoteBackend(
        Client(
            read_addresses(location),
            token=None if given is None else check_token(given),
            ca=None if authorities is None else Path(authorities),
            budget=budget,
        )
    )


class RemoteRegistry:
    """Tells a service what writers say."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        """Open a writer, new or known."""
        value = {"writer": writer, "keys": list(keys)}
        return self._client.call(Request.about(stream, "POST", "writers", value=value), load_opened)

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Take a mark, or say why not."""
        value = _mark_value(author, key, time, position)
        return self._client.call(Request.about(stream, "POST", "marks", value=value), _load_outcome)

    def note_many(self, notes: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Take many marks in one request, and return for each what became of it, or its error."""
        marks = [
            {"stream": note.stream.id, "name": note.stream.name}
            | _mark_value(note.author, note.key, note.time, note.position)
            for note in notes
        ]
        request = Request("POST", f"{API_PREFIX}/marks", body=json.dumps({"marks": marks}))
        return self._client.call(request, lambda value: [_load_result(one) for one in value["results"]])

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes for now."""
        self._client.call(Request.about(stream, "POST", "writers", "idle", value=_writer_value(author, position)), dict)

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Take a writer's word that nothing comes any more."""
        self._client.call(
            Request.about(stream, "POST", "writers", "close", value=_writer_value(author, position)), dict
        )


def _load_outcome(value: Any) -> MarkOutcome:
    return MarkOutcome(value["outcome"])


def _load_result(value: Any) -> OutcomeOrError:
    return _load_outcome(value) if value["error"] is None else load_error(value["error"], 409)


def _writer_value(author: Author, position: Position) -> dict[str, Any]:
    return {"writer": author.writer, "instance": author.instance, "position": save_position(position)}


def _mark_value(author: Author, key: str, time: int, position: Position) -> dict[str, Any]:
    return {**_writer_value(author, position), "key": key, "time": time}


class RemoteTransactions:
    """Begins and ends transactions by way of a service."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client

    def begin(self, stream: StreamInfo, author: Author, timeout: int | None = None) -> str:
        """Begin a transaction, and return its id."""
        # Made here, so that to ask again after a lost answer begins no second one.
        transaction = new_transaction_id()
        value = {
            "transaction": transaction,
            "writer": author.writer,
            "instance": author.instance,
            "timeout": timeout,
        }
        self._client.call(Request.about(stream, "POST", "transactions", value=value), dict)
        return transaction

    def state(self, stream: StreamInfo, transaction: str) -> TransactionState:
        """Return where a transaction is."""
        request = Request.about(stream, "GET", "transactions", transaction)
        return self._client.call(request, lambda value: TransactionState(value["state"]))

    def request(self, stream: StreamInfo, transaction: str, key: str | None, time: int | None) -> None:
        """Ask for a commit."""
        value = {"key": key, "time": time}
        self._client.call(Request.about(stream, "POST", "transactions", transaction, "request", value=value), dict)

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Commit a transaction for which that was asked."""
        return self._client.call(Request.about(stream, "POST", "transactions", transaction, "finish"), load_commit)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Give a transaction up."""
        self._client.call(Request.about(stream, "POST", "transactions", transaction, "abort"), dict)


def _load_numbers(value: Any) -> range:
    return range(value["first"], value["last"] + 1) if value["last"] else range(0)


def _load_entries(value: Any) -> list[MarkEntry]:
    return [MarkEntry.load(one) for one in value["entries"]]


def _load_found(value: Any) -> MarkEntry | None:
    return None if value["entry"] is None else MarkEntry.load(value["entry"])


_LONGEST_WAIT: Final = 10.0
"""For how many seconds one request waits: less than a service is given to answer."""


class RemoteGroups:
    """Asks a service about groups."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Ask by way of this client."""
        self._client = client

    def create(self, group: NewGroup) -> GroupState:
        """Make a group under a name that no other has."""
        return self._state(Request("POST", GROUPS_PATH, body=json.dumps(group.save())))

    def find(self, name: str) -> GroupState:
        """Return the group of a name, or refuse a name that none has."""
        return self._state(Request("GET", f"{API_PREFIX}/group", {"name": name}))

    def all(self) -> list[GroupState]:
        """Return all groups that may be seen, by their names."""
        return self._client.call(
            Request("GET", GROUPS_PATH), lambda value: [GroupState.load(one) for one in value["groups"]]
        )

    def delete(self, group: GroupRef) -> None:
        """Forget a group."""
        self._client.call(_group_request(group, "DELETE"), dict)

    def join(self, group: GroupRef, reader: str, instance: str, ttl: int) -> GroupState:
        """Take a reader in, which may be silent for so many microseconds."""
        return self._state(_group_request(group, "POST", "join", {"reader": reader, "instance": instance, "ttl": ttl}))

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Take what a reader says of itself, and return where the group is then."""
        return self._state(_group_request(group, "POST", "sync", report.save()))

    def leave(self, group: GroupRef, report: Report) -> None:
        """Take the last word of a reader; its segments are free from then on."""
        self._client.call(_group_request(group, "POST", "leave", report.save()), dict)

    def expel(self, group: GroupRef, reader: str, instance: str) -> GroupState:
        """Send a reader away that is known to be dead."""
        return self._state(_group_request(group, "POST", "expel", {"reader": reader, "instance": instance}))

    def tend(self, group: GroupRef) -> GroupState:
        """Settle what time alone changes, and return the state."""
        return self._state(_group_request(group, "POST", "tend"))

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Begin a checkpoint, by its id, which is given up after so many microseconds."""
        value = {"checkpoint": checkpoint, "name": name, "timeout": timeout}
        return self._state(_group_request(group, "POST", "start-checkpoint", value))

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Give a checkpoint up that is not complete."""
        return self._state(_group_request(group, "POST", "cancel-checkpoint", {"checkpoint": checkpoint}))

    def reset(self, group: GroupRef, reset_id: str, streams: tuple[StreamBounds, ...]) -> GroupState:
        """Set all streams of a group to other places, under an id of this reset, and send its readers away."""
        value = {"reset": reset_id, "streams": [bounds.save() for bounds in streams]}
        return self._state(_group_request(group, "POST", "reset", value))

    def news(self, wanted: Subscription, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""
        while True:
            wait = min(seconds, _LONGEST_WAIT)
            value = {"wanted": wanted.save(), "seconds": wait}
            news = self._client.call(Request("POST", f"{API_PREFIX}/news", body=json.dumps(value)), News.load)
            seconds -= wait
            if seconds <= 0 or news.is_new_to(wanted):
                return news

    def _state(self, request: Request) -> GroupState:
        return self._client.call(request, GroupState.load)


def _group_request(group: GroupRef, method: str, action: str = "", value: Any = None) -> Request:
    path = f"{GROUPS_PATH}/{group.id}" + (f"/{action}" if action else "")
    return Request(method, path, {"name": group.name}, None if value is None else json.dumps(value))
