"""The ports of a home behind services: each operation is a request."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from floodmark.streams.definition import StreamInfo
from floodmark.streams.groups.requests import GroupRef, NewGroup, News, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import GroupState
from floodmark.streams.layout.positions import Position, save_position
from floodmark.streams.layout.retention import RetentionStatus
from floodmark.streams.marks.log import MarkEntry, unknown_entry
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
    """The marks log of one stream and key, looked up by a service."""

    __slots__ = ("_client", "_key", "_stream")

    def __init__(self, client: Client, stream: StreamInfo, key: str) -> None:
        """Read the log of this stream and key."""
        self._client = client
        self._stream = stream
        self._key = key

    def newest(self) -> MarkEntry | None:
        """Return the newest watermark."""
        return self._find("newest")

    def newest_with_lower_at_most(self, time: int) -> MarkEntry | None:
        """Return the newest watermark whose `lower` is not above `time`."""
        return self._find("newest-with-lower-at-most", time)

    def oldest_with_lower_at_least(self, time: int) -> MarkEntry | None:
        """Return the oldest entry of any kind whose `lower` is not below `time`."""
        return self._find("oldest-with-lower-at-least", time)

    def newest_with_upper_at_most(self, time: int) -> MarkEntry | None:
        """Return the newest watermark whose `upper` is not above `time`."""
        return self._find("newest-with-upper-at-most", time)

    def numbers(self) -> range:
        """Return the numbers of the stored entries."""
        return self._get(_load_numbers, "numbers")

    def entry(self, number: int) -> MarkEntry:
        """Return the entry with a number."""
        return self._get(lambda value: MarkEntry.load(value["entry"]), number)

    def entry_from(self, number: int) -> MarkEntry:
        """Return the first stored entry from a number on, or raise `UnknownName`."""
        page = self.page(number - 1, 1)
        if not page:
            raise unknown_entry(number)
        return page[0]

    def page(self, after: int, most: int) -> list[MarkEntry]:
        """Return up to `most` entries after the number `after`, in order."""
        entries: list[MarkEntry] = []
        while len(entries) < most:
            page_size = min(most - len(entries), MOST_ENTRIES)
            page = self._get(_load_entries, after=after, most=page_size)
            entries += page
            if len(page) < page_size:
                break
            after = entries[-1].seq
        return entries

    def _find(self, by: str, time: int | None = None) -> MarkEntry | None:
        return self._get(_load_found, "find", by=by, time=time)

    def _get(self, load: Callable[[Any], T], *parts: str | int, **query: str | int | None) -> T:
        full_query = {"key": self._key, **query}
        return self._client.call(Request.about(self._stream, "GET", "entries", *parts, query=full_query), load)


class RemoteBackend:
    """A home that is reached through services."""

    __slots__ = ("_client", "catalog", "groups", "log", "registry", "transactions")

    def __init__(self, client: Client) -> None:
        """Use this client."""
        self._client = client
        self.catalog = RemoteCatalog(client)
        self.log = RemoteLog(client, self.catalog)
        self.registry = RemoteRegistry(client)
        self.transactions = RemoteTransactions(client)
        self.groups = RemoteGroups(client)

    def news(self, subscription: Subscription, seconds: float) -> News:
        """Return as soon as anything is newer than the subscription, or when the time is over."""
        return self.groups.news(subscription, seconds)

    def marks(self, stream: StreamInfo, key: str) -> RemoteMarks:
        """Return the marks log of a stream and key."""
        return RemoteMarks(self._client, stream, key)

    def explain(self, stream: StreamInfo, key: str) -> WatermarkExplanation:
        """Return why the watermark of a stream and key has its value."""
        return self._client.call(Request.about(stream, "GET", "why", query={"key": key}), load_explanation)

    def retention(self, stream: StreamInfo) -> RetentionStatus:
        """Return what retention has removed of a stream, and what it waits for."""
        return self._client.call(Request.about(stream, "GET", "retention"), RetentionStatus.load)

    def now(self) -> int:
        """Return the store's time."""
        return self._client.call(Request("GET", f"{API_PREFIX}/time"), lambda value: int(value["now"]))

    def wake(self) -> None:
        """Do nothing: the service wakes its own controller."""

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def __repr__(self) -> str:
        return f"Service({str(self._client.addresses)!r})"


def open_remote(
    location: str, *, token: str | None = None, ca: str | Path | None = None, budget: float = BUDGET_SECONDS
) -> RemoteBackend:
    """Return the home behind the services at a location, without sending a request yet.

    The defaults of `token` and `ca` are the environment variables FLOODMARK_TOKEN and FLOODMARK_CA.

    >>> open_remote("http://127.0.0.1:8787,127.0.0.1:8788", token="fmk_0123456789ab_secret")
    Service('http://127.0.0.1:8787,http://127.0.0.1:8788')
    """
    token = token if token is not None else os.environ.get(TOKEN_VARIABLE) or None
    ca = ca if ca is not None else os.environ.get(CA_VARIABLE) or None
    return RemoteBackend(
        Client(
            read_addresses(location),
            token=None if token is None else check_token(token),
            ca=None if ca is None else Path(ca),
            budget=budget,
        )
    )


class RemoteRegistry:
    """Reports of writers, sent to a service."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Use this client."""
        self._client = client

    def open(self, stream: StreamInfo, writer: str | None, keys: Iterable[str]) -> OpenedWriter:
        """Open a writer."""
        value = {"writer": writer, "keys": list(keys)}
        return self._client.call(Request.about(stream, "POST", "writers", value=value), load_opened)

    def note(self, stream: StreamInfo, author: Author, key: str, time: int, position: Position) -> MarkOutcome:
        """Note a mark and return its outcome."""
        value = _mark_value(author, key, time, position)
        return self._client.call(Request.about(stream, "POST", "marks", value=value), _load_outcome)

    def note_many(self, requests: Sequence[MarkRequest]) -> list[OutcomeOrError]:
        """Note many marks in one request and return the outcome or error of each."""
        marks = [
            {"stream": mark.stream.id, "name": mark.stream.name}
            | _mark_value(mark.author, mark.key, mark.time, mark.position)
            for mark in requests
        ]
        request = Request("POST", f"{API_PREFIX}/marks", body=json.dumps({"marks": marks}))
        return self._client.call(request, lambda value: [_load_result(result) for result in value["results"]])

    def idle(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Mark a writer as idle."""
        self._client.call(Request.about(stream, "POST", "writers", "idle", value=_writer_value(author, position)), dict)

    def close(self, stream: StreamInfo, author: Author, position: Position) -> None:
        """Close a writer."""
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
    """Transactions, through a service."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Use this client."""
        self._client = client

    def begin(self, stream: StreamInfo, author: Author, timeout: int | None = None) -> str:
        """Begin a transaction and return its id."""
        # Chosen here, so that a retry after a lost answer is idempotent.
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
        """Return the state of a transaction."""
        request = Request.about(stream, "GET", "transactions", transaction)
        return self._client.call(request, lambda value: TransactionState(value["state"]))

    def request(self, stream: StreamInfo, transaction: str, times: Mapping[str, int]) -> None:
        """Request a commit."""
        value = {"times": dict(times)}
        self._client.call(Request.about(stream, "POST", "transactions", transaction, "request", value=value), dict)

    def finish(self, stream: StreamInfo, transaction: str) -> CommitResult:
        """Carry out a requested commit."""
        return self._client.call(Request.about(stream, "POST", "transactions", transaction, "finish"), load_commit)

    def abort(self, stream: StreamInfo, transaction: str) -> None:
        """Abort a transaction."""
        self._client.call(Request.about(stream, "POST", "transactions", transaction, "abort"), dict)


def _load_numbers(value: Any) -> range:
    return range(value["first"], value["last"] + 1) if value["last"] else range(0)


def _load_entries(value: Any) -> list[MarkEntry]:
    return [MarkEntry.load(entry) for entry in value["entries"]]


def _load_found(value: Any) -> MarkEntry | None:
    return None if value["entry"] is None else MarkEntry.load(value["entry"])


_LONGEST_WAIT: Final = 10.0
"""For how many seconds one request waits; less than the timeout of an attempt."""


class RemoteGroups:
    """Reader groups, through a service."""

    __slots__ = ("_client",)

    def __init__(self, client: Client) -> None:
        """Use this client."""
        self._client = client

    def create(self, group: NewGroup) -> GroupState:
        """Create a group under an unused name."""
        return self._state(Request("POST", GROUPS_PATH, body=json.dumps(group.save())))

    def find(self, name: str) -> GroupState:
        """Return the group with a name, or raise `UnknownGroup`."""
        return self._state(Request("GET", f"{API_PREFIX}/group", {"name": name}))

    def all(self) -> list[GroupState]:
        """Return the visible groups, sorted by name."""
        return self._client.call(
            Request("GET", GROUPS_PATH), lambda value: [GroupState.load(group) for group in value["groups"]]
        )

    def delete(self, group: GroupRef) -> None:
        """Delete a group."""
        self._client.call(_group_request(group, "DELETE"), dict)

    def join(self, group: GroupRef, reader: str, instance: str, ttl: int) -> GroupState:
        """Add a reader with a heartbeat ttl in microseconds."""
        return self._state(_group_request(group, "POST", "join", {"reader": reader, "instance": instance, "ttl": ttl}))

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Store the progress of a reader and return the state of the group."""
        return self._state(_group_request(group, "POST", "sync", report.save()))

    def leave(self, group: GroupRef, report: Report) -> None:
        """Store the final progress of a reader and remove it."""
        self._client.call(_group_request(group, "POST", "leave", report.save()), dict)

    def expel(self, group: GroupRef, reader: str, instance_id: str) -> GroupState:
        """Remove a dead reader."""
        return self._state(_group_request(group, "POST", "expel", {"reader": reader, "instance_id": instance_id}))

    def refresh(self, group: GroupRef) -> GroupState:
        """Apply changes that depend on time only, and return the state."""
        return self._state(_group_request(group, "POST", "tend"))

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Start a checkpoint with a timeout in microseconds."""
        value = {"checkpoint": checkpoint, "name": name, "timeout": timeout}
        return self._state(_group_request(group, "POST", "start-checkpoint", value))

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Cancel an incomplete checkpoint."""
        return self._state(_group_request(group, "POST", "cancel-checkpoint", {"checkpoint": checkpoint}))

    def reset(self, group: GroupRef, reset_id: str, streams: tuple[StreamBounds, ...]) -> GroupState:
        """Move a group to new positions, and remove its readers."""
        value = {"reset": reset_id, "streams": [bounds.save() for bounds in streams]}
        return self._state(_group_request(group, "POST", "reset", value))

    def news(self, subscription: Subscription, seconds: float) -> News:
        """Return as soon as anything is newer than the subscription, or when the time is over."""
        while True:
            wait = min(seconds, _LONGEST_WAIT)
            value = {"wanted": subscription.save(), "seconds": wait}
            news = self._client.call(Request("POST", f"{API_PREFIX}/news", body=json.dumps(value)), News.load)
            seconds -= wait
            if seconds <= 0 or news.is_new_to(subscription):
                return news

    def _state(self, request: Request) -> GroupState:
        return self._client.call(request, GroupState.load)


def _group_request(group: GroupRef, method: str, action: str = "", value: Any = None) -> Request:
    path = f"{GROUPS_PATH}/{group.id}" + (f"/{action}" if action else "")
    return Request(method, path, {"name": group.name}, None if value is None else json.dumps(value))
