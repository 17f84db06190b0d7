"""A reader's place in its group: what it says to the store, and what the store says to it."""

import threading
import time
from collections.abc import Mapping
from typing import Final

from floodmark.errors import (
    FloodmarkError,
    GroupDeleted,
    GroupReset,
    HomeClosed,
    ReaderExpelled,
    StreamDeleted,
)
from floodmark.streams._automatic import Ticker
from floodmark.streams._backend import Backend
from floodmark.streams.readers._requests import GroupRef, Report
from floodmark.streams.readers._state import GroupState, ReaderRecord, Share

_FOR_GOOD: Final = (GroupDeleted, GroupReset, HomeClosed, ReaderExpelled, StreamDeleted)


class Membership:
    """Keeps a reader in its group. A thread of its own gives signs of life while the application is busy.

    `state` is the newest that is known of the group. `positions` is what the reader has acknowledged; it is replaced
    and never changed, since the thread reads it.
    """

    __slots__ = (
        "_backend",
        "_lock",
        "_ticker",
        "generation",
        "id",
        "instance",
        "positions",
        "ref",
        "state",
        "synced_at",
    )

    def __init__(self, backend: Backend, state: GroupState, reader: str, instance: str, ttl: int) -> None:
        """Begin with the state in which the reader has joined."""
        self._backend = backend
        self.ref = GroupRef(state.name, state.group_id)
        self.id = reader
        self.instance = instance
        self.generation = state.generation
        self.state = state
        self.positions: Mapping[Share, int] = {}
        self.synced_at = time.monotonic()
        self._lock = threading.Lock()
        self._ticker = Ticker(ttl / 3e6, self._beat, f"floodmark reader {reader}")

    @property
    def record(self) -> ReaderRecord | None:
        """What the group knows of the reader, by the newest state."""
        record = self.state.reader(self.id)
        is_own = record is not None and record.instance == self.instance and self.state.generation == self.generation
        return record if is_own and self.state.group_id == self.ref.id else None

    @property
    def is_asked(self) -> bool:
        """Whether the group waits for the reader to give a segment back or confirm a checkpoint, or has lost it."""
        record, pending = self.record, self.state.pending
        return record is None or bool(record.giving) or (pending is not None and self.id in pending.waits_for)

    def take(self, state: GroupState) -> bool:
        """Take a state that was read elsewhere, and return whether it is newer."""
        is_newer = state.group_id != self.ref.id or state.version > self.state.version
        if is_newer:
            self.state = state
        return is_newer

    def sync(
        self,
        *,
        released: frozenset[Share] = frozenset(),
        confirms: str | None = None,
        times: Mapping[Share, int] | None = None,
        places: Mapping[tuple[str, str], int] | None = None,
    ) -> GroupState:
        """Report, and return what the group says."""
        report = Report(
            self.id, self.instance, self.generation, self.positions, released, times or {}, places or {}, confirms
        )
        with self._lock:
            self.synced_at = time.monotonic()
            self.state = self._backend.groups.sync(self.ref, report)
        return self.state

    def stop(self) -> None:
        """Give no more signs of life."""
        self._ticker.stop()

    def leave(self) -> None:
        """Say goodbye, if there is still somebody to hear it, with what was acknowledged."""
        self.stop()
        try:
            self._backend.groups.leave(self.ref, Report(self.id, self.instance, self.generation, self.positions))
        except _FOR_GOOD:
            return
        finally:
            self._ticker.join()

    def _beat(self) -> None:
        """Give a sign of life, unless the reader does so now. What the group answers is for the reader to hear."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._backend.groups.sync(self.ref, Report(self.id, self.instance, self.generation, self.positions))
        except FloodmarkError as error:
            # The reader finds out by itself. What may pass, such as a service that is away, is tried again.
            if isinstance(error, _FOR_GOOD):
                raise
        finally:
            self._lock.release()
