"""Controllers advance watermarks as writers note time. Any number of them divide the streams of a home.

Each stream belongs to one of a fixed number of buckets. A controller leases an even share of the buckets, watches their
change counters, and updates the watermarks of the streams and keys that changed or are due.
"""

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from types import TracebackType
from typing import Final, Protocol

from sqlalchemy import select

from floodmark._util.times import Duration, duration_micros
from floodmark.control import Home, Lease, Leases, Member, Members
from floodmark.control.leases import LEASES_TOPIC
from floodmark.control.members import MEMBERS_TOPIC
from floodmark.errors import FloodmarkError, HomeClosed, LeaseLost, UnknownMember
from floodmark.streams.backend import LocalBackend
from floodmark.streams.definition import BUCKETS, assign_buckets
from floodmark.streams.local.catalog import marks_counter
from floodmark.streams.local.tables import KEYS
from floodmark.streams.local.watermarks import WatermarkUpdate, entries_counter, update_watermarks
from floodmark.streams.ports import StreamKey

_POLL_SECONDS: Final = 0.01
"""How often changes by other processes are polled; writers of this process wake the controller at once."""
_QUIET_POLL_SECONDS: Final = 0.1
_QUIET_AFTER_SECONDS: Final = 1.0
"""After so long without a change, changes are polled less often, so that an idle process needs little of the CPU."""
_SWEEP_MICROS: Final = 1_000_000
"""How often expired transactions are aborted, and old events removed."""
_ERROR_PAUSE_SECONDS: Final = 0.5
_TOPICS_SECONDS: Final = 0.1
"""How often new marks of streams in Kafka are looked for."""
_TOPICS_SWEEP_SECONDS: Final = 1.0
"""How often the streams in Kafka are maintained without new marks."""

_LOG: Final = logging.getLogger("floodmark.streams")


class HasLocalBackend(Protocol):
    """A `StreamHome` that was opened in this process."""

    @property
    def local(self) -> LocalBackend:
        """The backend that a controller works on."""


class Controller:
    """Advances the watermarks of its share of a home's streams, in background threads between `start` and `stop`.

    >>> with connect(controller=False) as home:
    ...     stream = home.create_stream("shop/tills")
    ...     with stream.writer("till-3") as writer, Controller(home) as controller:
    ...         outcome = writer.note_time(1_000)
    ...         stream.await_mark(1_000).lower
    1000

    `connect` starts one in each process that writes, unless `controller=False`. Tests with their own clock call `step`
    to do one round.
    """

    __slots__ = (
        "_backend",
        "_bucket_leases",
        "_changed_at",
        "_counters",
        "_deadlines",
        "_due",
        "_handled_changes",
        "_is_stopping",
        "_now",
        "_postponed",
        "_stop_event",
        "_sweep_at",
        "_swept",
        "_thread",
        "_topics_counters",
        "_topics_due_at",
        "_topics_swept",
        "_topics_thread",
        "_wake_event",
    )

    def __init__(self, home: HasLocalBackend, *, name: str | None = None, ttl: Duration = "10 seconds") -> None:
        """Prepare a controller of this home.

        Args:
            home: The home, opened in this process.
            name: The unique name of the controller in leases; generated if left out.
            ttl: After this time without a heartbeat other controllers take its buckets over.
        """
        self._backend = backend = home.local
        unique = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._bucket_leases = BucketLeases(backend.home, unique, duration_micros(ttl, "ttl", least=60))
        self._counters: dict[str, int] = {}
        self._handled_changes: dict[StreamKey, int] = {}
        self._deadlines: dict[StreamKey, int] = {}
        self._due: set[StreamKey] = set()
        self._postponed: set[StreamKey] = set()
        self._sweep_at: int | None = None
        self._swept: frozenset[int] = frozenset()
        self._changed_at = 0.0
        self._topics_swept: frozenset[int] = frozenset()
        self._topics_counters: dict[str, int] = {}
        self._topics_due_at = 0.0
        self._now = 0
        self._wake_event = threading.Event()
        self._stop_event = threading.Event()
        self._is_stopping = False
        self._thread: threading.Thread | None = None
        self._topics_thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The name of the controller in leases."""
        return self._bucket_leases.name

    @property
    def buckets(self) -> frozenset[int]:
        """The buckets that it has leased now."""
        return frozenset(self._bucket_leases.leases)

    def start(self) -> None:
        """Start the background threads. Idempotent."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"floodmark controller {self.name}", daemon=True)
            self._thread.start()
            name = f"floodmark topics {self.name}"
            self._topics_thread = threading.Thread(target=self._run_topics, name=name, daemon=True)
            self._topics_thread.start()

    def wake(self) -> None:
        """Start a round now: a writer of this process changed its record."""
        self._wake_event.set()

    def stop(self) -> None:
        """Stop, and release the buckets, so that other controllers can take them at once."""
        self._is_stopping = True
        self._wake_event.set()
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._topics_thread is not None:
            self._topics_thread.join()
            self._topics_thread = None
        else:
            self._release_leases()

    def step(self) -> list[WatermarkUpdate]:
        """Do one round: maintain the leases, find changes, update the watermarks that are due; return the updates."""
        home, leases = self._backend.home, self._bucket_leases
        was, self._now = self._now, home.now()
        now = self._now
        leases.keep(now)
        # Commits that a dead writer requested come first: the writer may time out in this round.
        self._sweep(now)
        self._collect_changes(home)
        # If the clock was set back, the deadlines are outdated.
        due = {stream_key for stream_key, at in self._deadlines.items() if at <= now or now < was}
        due |= self._due | self._postponed
        self._due, self._postponed = set(), self._unswept(due)
        due -= self._postponed
        updates = self._update(due) if due else []
        if updates and self._topics_thread is None:
            self._backend.maintain_topics(leases.leases)
        return updates

    def _sweep(self, now: int) -> None:
        """Finish and abort transactions of the leased buckets, and remove their old events, as far as due."""
        leased = frozenset(self._bucket_leases.leases)
        is_waiting = self._sweep_at is not None and 0 < self._sweep_at - now <= _SWEEP_MICROS
        if is_waiting and leased <= self._swept:
            return
        self._sweep_at = now + _SWEEP_MICROS
        self._swept = leased
        self._backend.transactions.sweep(leased)
        self._backend.table_retention.sweep(leased)
        if self._topics_thread is None:
            self._backend.maintain_topics(leased)

    def _unswept(self, due: set[StreamKey]) -> set[StreamKey]:
        """Return the keys of streams in Kafka whose requested commits the other thread has not tried to finish yet."""
        if self._topics_thread is None or self._bucket_leases.leases.keys() <= self._topics_swept:
            return set()
        streams = {stream_key: self._backend.catalog.find_id(stream_key[0]) for stream_key in due}
        return {
            stream_key
            for stream_key, stream in streams.items()
            if stream is not None and stream.log is not None and stream.bucket not in self._topics_swept
        }

    def _collect_changes(self, home: Home) -> None:
        """Add the streams and keys of the leased buckets that changed since the last round to `_due`."""
        topics = {marks_counter(bucket): bucket for bucket in self._bucket_leases.leases}
        if not topics:
            self._counters = {}
            return
        # Read the counters before the rows: a change in between is then read twice rather than missed.
        counters = home.changes(*topics)
        changed = {bucket for topic, bucket in topics.items() if counters[topic] != self._counters.get(topic)}
        self._counters = counters
        if not changed:
            return
        query = select(KEYS.c.stream_id, KEYS.c.time_key, KEYS.c.changed).where(KEYS.c.bucket.in_(changed))
        with home.read() as connection:
            rows = connection.execute(query).all()
        for row in rows:
            stream_key = (row.stream_id, row.time_key)
            if row.changed and self._handled_changes.get(stream_key) != row.changed:
                self._due.add(stream_key)

    def _update(self, due: set[StreamKey]) -> list[WatermarkUpdate]:
        try:
            updates = update_watermarks(self._backend.home, self._backend.catalog, due, self._bucket_leases.leases)
        except LeaseLost:
            # Another controller took a bucket over; the next round retries what is still leased.
            self._bucket_leases.drop_lost()
            self._due |= due
            return []
        # Forget streams that were skipped because they were deleted or their bucket is not leased any more.
        for stream_key in due:
            self._deadlines.pop(stream_key, None)
            self._handled_changes.pop(stream_key, None)
        for update in updates:
            self._handled_changes[update.target] = update.changed
            if update.look_at is not None:
                self._deadlines[update.target] = update.look_at
        return updates

    def _wait_seconds(self) -> float:
        """Return how long no round is needed, unless something changes."""
        if self._due:
            return 0.0
        next_rounds = [*self._deadlines.values(), self._bucket_leases.next_at, self._now + _SWEEP_MICROS]
        return max((min(next_rounds) - self._now) / 1e6, 0.0005)

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake_event.clear()
            pause = self._log_errors(self._step_and_wait)
            if pause is None:
                return
            self._wake_event.wait(pause)
        self._release_leases()

    def _step_and_wait(self) -> float:
        """Do one round, and wait until the next one is due, a writer of this process reports, or a counter moves."""
        self.step()
        seen = {**self._counters, **self._bucket_leases.counters}
        due_at = monotonic() + self._wait_seconds()
        while (left := due_at - monotonic()) > 0:
            is_quiet = monotonic() - self._changed_at > _QUIET_AFTER_SECONDS
            is_awake = self._wake_event.wait(min(left, _QUIET_POLL_SECONDS if is_quiet else _POLL_SECONDS))
            if is_awake or self._backend.home.changes(*seen) != seen:
                self._changed_at = monotonic()
                break
        return 0.0

    def _run_topics(self) -> None:
        """Maintain the streams in Kafka. A thread of its own keeps the rounds going while Kafka is unavailable."""
        while not self._is_stopping:
            pause = self._log_errors(self._maintain_topics)
            if pause is None:
                return
            self._stop_event.wait(pause)

    def _maintain_topics(self) -> float:
        leased = frozenset(self._bucket_leases.leases)
        counters = self._backend.home.changes(*map(entries_counter, leased)) if leased else {}
        is_due = monotonic() >= self._topics_due_at or leased != self._topics_swept
        if is_due or counters != self._topics_counters:
            self._topics_due_at = monotonic() + _TOPICS_SWEEP_SECONDS
            self._topics_counters = counters
            try:
                has_topics = self._backend.maintain_topics(leased)
            except BaseException:
                self._topics_due_at = 0.0
                raise
            finally:
                if leased != self._topics_swept:
                    self._topics_swept = leased
                    self.wake()
            if leased and not has_topics:
                return _TOPICS_SWEEP_SECONDS
        return _TOPICS_SECONDS

    def _log_errors(self, action: Callable[[], float]) -> float | None:
        """Run an action, log its error, and return how long to pause after it; None if the home is closed."""
        try:
            return action()
        except HomeClosed:
            return None
        except FloodmarkError as error:
            _LOG.warning("The controller %s retries after an error: %s", self.name, error)
        except Exception:
            _LOG.exception("The controller %s retries after an unexpected error.", self.name)
        return _ERROR_PAUSE_SECONDS

    def _release_leases(self) -> None:
        try:
            self._bucket_leases.release_all()
        except FloodmarkError as error:
            # Other controllers take the buckets over after the ttl.
            _LOG.warning("The controller %s could not release its leases: %s", self.name, error)

    def __enter__(self) -> "Controller":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


_LEASE_PREFIX: Final = "bucket/"


@dataclass(slots=True)
class BucketLeases:
    """The buckets that one controller has leased. The controller calls `keep` in each round.

    Live controllers divide the buckets evenly. A bucket moves when its owner releases it, or sends no heartbeat for a
    `ttl`.
    """

    home: Home
    name: str
    ttl: int
    leases: dict[int, Lease] = field(default_factory=dict)
    _member: Member | None = None
    _beat_at: int | None = None
    _rebalance_at: int | None = None
    counters: dict[str, int] = field(default_factory=dict)
    """The change counters of members and leases at the last rebalancing."""

    @property
    def next_at(self) -> int:
        """When `keep` has something to do next, if the counters do not move."""
        due = [self._rebalance_at, None if self._beat_at is None else self._beat_at + self.ttl // 3]
        return min((at for at in due if at is not None), default=0)

    def keep(self, now: int) -> None:
        """Send a heartbeat, renew the leases and rebalance the buckets, as far as due."""
        if self._beat_at is None or not 0 <= now - self._beat_at < self.ttl // 3:
            self._beat(now)
        counters = self.home.changes(MEMBERS_TOPIC, LEASES_TOPIC)
        is_waiting = self._rebalance_at is not None and 0 < self._rebalance_at - now <= self.ttl
        if counters == self.counters and is_waiting:
            return
        # Store the counters first: a change during the rebalancing then starts another one.
        self.counters = counters
        self._rebalance(now)

    def drop_lost(self) -> None:
        """Renew the leases, and forget those that were lost."""
        kept = Leases(self.home).renew_all(self.leases.values())
        self.leases = {_leased_bucket(lease): lease for lease in kept}

    def release_all(self) -> None:
        """Release all leases and leave, so that other controllers need not wait for the ttl."""
        leases = Leases(self.home)
        for lease in self.leases.values():
            leases.release(lease)
        self.leases = {}
        if self._member is not None:
            Members(self.home).leave(self._member)
            self._member = None

    def _beat(self, now: int) -> None:
        members = Members(self.home)
        if self._member is not None:
            try:
                self._member = members.beat(self._member)
            except UnknownMember:
                self._member = None
        if self._member is None:
            self._member = members.join(self.name, self.ttl)
        if self.leases:
            self.drop_lost()
        self._beat_at = now

    def _rebalance(self, now: int) -> None:
        leases = Leases(self.home)
        alive = [member.name for member in Members(self.home).alive()]
        held = {_leased_bucket(lease): lease.owner for lease in leases.held(_LEASE_PREFIX)}
        owners = assign_buckets(BUCKETS, alive, held)
        assigned = {bucket for bucket, owner in owners.items() if owner == self.name}
        for bucket in sorted(set(self.leases) - assigned):
            leases.release(self.leases.pop(bucket))
        for bucket in sorted(assigned - set(self.leases)):
            if held.get(bucket, self.name) != self.name:
                # Try again when its owner releases it, or its lease expires.
                continue
            lease = leases.acquire(_lease_name(bucket), self.name, self.ttl)
            if lease is not None:
                self.leases[bucket] = lease
        is_complete = assigned == set(self.leases)
        self._rebalance_at = now + (self.ttl // 3 if is_complete else self.ttl // 20)


def _lease_name(bucket: int) -> str:
    return f"{_LEASE_PREFIX}{bucket}"


def _leased_bucket(lease: Lease) -> int:
    return int(lease.name.removeprefix(_LEASE_PREFIX))
