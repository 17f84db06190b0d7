"""The reader groups of a home behind a service."""

import json
from typing import Any, Final

from floodmark.streams.readers._requests import GroupRef, NewGroup, News, Report, StreamBounds, Wanted
from floodmark.streams.readers._state import GroupState
from floodmark.streams.remote._client import Client
from floodmark.streams.remote._requests import VERSION, Request

GROUPS: Final = f"{VERSION}/groups"
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
        return self._state(Request("POST", GROUPS, body=json.dumps(group.save())))

    def find(self, name: str) -> GroupState:
        """Return the group of a name, or refuse a name that none has."""
        return self._state(Request("GET", f"{VERSION}/group", {"name": name}))

    def all(self) -> list[GroupState]:
        """Return all groups that may be seen, by their names."""
        return self._client.call(
            Request("GET", GROUPS), lambda value: [GroupState.load(one) for one in value["groups"]]
        )

    def delete(self, group: GroupRef) -> None:
        """Forget a group."""
        self._client.call(_about(group, "DELETE"), dict)

    def join(self, group: GroupRef, reader: str, instance: str, ttl: int) -> GroupState:
        """Take a reader in, which may be silent for so many microseconds."""
        return self._state(_about(group, "POST", "join", {"reader": reader, "instance": instance, "ttl": ttl}))

    def sync(self, group: GroupRef, report: Report) -> GroupState:
        """Take what a reader says of itself, and return where the group is then."""
        return self._state(_about(group, "POST", "sync", report.save()))

    def leave(self, group: GroupRef, report: Report) -> None:
        """Take the last word of a reader; its segments are free from then on."""
        self._client.call(_about(group, "POST", "leave", report.save()), dict)

    def expel(self, group: GroupRef, reader: str, instance: str) -> GroupState:
        """Send a reader away that is known to be dead."""
        return self._state(_about(group, "POST", "expel", {"reader": reader, "instance": instance}))

    def tend(self, group: GroupRef) -> GroupState:
        """Settle what time alone changes, and return the state."""
        return self._state(_about(group, "POST", "tend"))

    def start_checkpoint(self, group: GroupRef, checkpoint: str, name: str, timeout: int) -> GroupState:
        """Begin a checkpoint, by its id, which is given up after so many microseconds."""
        value = {"checkpoint": checkpoint, "name": name, "timeout": timeout}
        return self._state(_about(group, "POST", "start-checkpoint", value))

    def cancel_checkpoint(self, group: GroupRef, checkpoint: str) -> GroupState:
        """Give a checkpoint up that is not complete."""
        return self._state(_about(group, "POST", "cancel-checkpoint", {"checkpoint": checkpoint}))

    def reset(self, group: GroupRef, reset_id: str, streams: tuple[StreamBounds, ...]) -> GroupState:
        """Set all streams of a group to other places, under an id of this reset, and send its readers away."""
        value = {"reset": reset_id, "streams": [bounds.save() for bounds in streams]}
        return self._state(_about(group, "POST", "reset", value))

    def news(self, wanted: Wanted, seconds: float) -> News:
        """Return as soon as something is newer than what is known, or when the time is over."""
        while True:
            wait = min(seconds, _LONGEST_WAIT)
            value = {"wanted": wanted.save(), "seconds": wait}
            news = self._client.call(Request("POST", f"{VERSION}/news", body=json.dumps(value)), News.load)
            seconds -= wait
            if seconds <= 0 or news.is_new_to(wanted):
                return news

    def _state(self, request: Request) -> GroupState:
        return self._client.call(request, GroupState.load)


def _about(group: GroupRef, method: str, action: str = "", value: Any = None) -> Request:
    path = f"{GROUPS}/{group.id}" + (f"/{action}" if action else "")
    return Request(method, path, {"name": group.name}, None if value is None else json.dumps(value))
