"""Controllers bring watermarks forward as writers note time. Any number of them share the streams of a home.

Streams fall into a fixed number of buckets. A controller leases its even share of the buckets, watches the
change counters of those, and updates the watermarks of the streams and keys that changed or are due.
"""

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
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
from floodmark.streams.local.watermarks import StreamKey, WatermarkUpdate, update_watermarks

_POLL_SECONDS: Final = 0.01
"""How often other processes are looked at; writers of this process wake the controller at once."""
_SWEEP: Final = 1_000_000
_PAUSE_SECONDS: Final = 0.5
_CHORES_SECONDS: Final = 0.1

_LOG: Final = logging.getLogger("floodmark.streams")


class HasLocalBackend(Protocol):
    """A `StreamHome`."""

    @property
    def local(self) -> LocalBackend:
        """What a controller works on."""


class Controller:
    """Looks after the watermarks of its share of a home's streams, in a thread of its own once it is started.

    >>> with connect(controller=False) as home:
    ...     stream = home.create_stream("shop/tills")
    ...     with stream.writer("till-3") as writer, Controller(home) as controller:
    ...         outcome = writer.note_time(1_000)
    ...         stream.await_mark(1_000).lower
    1000

    `step` does one round by hand, for tests that say what time it is.
    """

    __slots__ = (
        "_backend",
        "_chores",
        "_due",
        "_ending",
        "_heard",
        "_now",
        "_seen",
        "_share",
        "_stopping",
        "_sweep_at",
        "_thread",
        "_timers",
        "_waking",
    )

    def __init__(self, home: HasLocalBackend, *, name: str | None = None, ttl: Duration = "10 seconds") -> None:
        """Prepare one. `ttl` is how long the others wait for it when it is silent; it says its name in leases."""
        self._backend = backend = home.local
        unique = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._share = BucketLeases(backend.home, unique, duration_micros(ttl, "ttl", least=60))
        self._seen: dict[str, int] = {}
        self._heard: dict[StreamKey, int] = {}
        self._timers: dict[StreamKey, int] = {}
        self._due: set[StreamKey] = set()
        self._sweep_at: int | None = None
        self._now = 0
        self._waking = threading.Event()
        self._ending = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._chores: threading.Thread | None = None

    @property
    def name(self) -> str:
        """The name by which other controllers know it."""
        return self._share.name

    @property
    def buckets(self) -> frozenset[int]:
        """The buckets that it looks after now."""
        return frozenset(self._share.leases)

    def start(self) -> None:
        """Begin in a thread of its own; to say so twice is no error."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"floodmark controller {self.name}", daemon=True)
            self._thread.start()
            self._chores = threading.Thread(target=self._tend, name=f"floodmark chores {self.name}", daemon=True)
            self._chores.start()

    def wake(self) -> None:
        """Let it look now: a writer was heard in this process."""
        self._waking.set()

    def stop(self) -> None:
        """Come to an end and give up the buckets, so that others can take them at once."""
        self._stopping = True
        self._waking.set()
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._chores is not None:
            self._chores.join()
            self._chores = None
        else:
            self._leave()

    def step(self) -> list[WatermarkUpdate]:
        """Do one round: keep the share, hear what has changed, look at what is due; return what came of it."""
        home = self._backend.home
        self._now = now = home.now()
        self._share.keep(now)
        self._hear(home)
        due = self._due | {target for target, at in self._timers.items() if at <= now}
        self._due = set()
        looked = self._look(due) if due else []
        if self._sweep_at is None or not 0 < self._sweep_at - now <= _SWEEP:
            self._sweep_at = now + _SWEEP
            self._backend.transactions.sweep(self._share.leases)
            if self._chores is None:
                self._backend.tend_topics(self._share.leases)
        return looked

    def _hear(self, home: Home) -> None:
        """Find out which streams of the share have changed since the last round."""
        topics = {marks_counter(bucket): bucket for bucket in self._share.leases}
        if not topics:
            self._seen = {}
            return
        # Counted before it is read: what comes in between is then read twice, and not missed.
        seen = home.changes(*topics)
        changed = {bucket for topic, bucket in topics.items() if seen[topic] != self._seen.get(topic)}
        self._seen = seen
        if not changed:
            return
        wanted = select(KEYS.c.stream_id, KEYS.c.time_key, KEYS.c.changed).where(KEYS.c.bucket.in_(changed))
        with home.read() as connection:
            rows = connection.execute(wanted).all()
        for row in rows:
            target = (row.stream_id, row.time_key)
            if row.changed and self._heard.get(target) != row.changed:
                self._due.add(target)

    def _look(self, due: set[StreamKey]) -> list[WatermarkUpdate]:
        try:
            looked = update_watermarks(self._backend.home, self._backend.catalog, due, self._share.leases)
        except LeaseLost:
            # Somebody else has taken over; what is still ours is looked at in the next round.
            self._share.drop_lost()
            self._due |= due
            return []
        # What was left out, since it is gone or another's, is looked at anew should it come back.
        for target in due:
            self._timers.pop(target, None)
            self._heard.pop(target, None)
        for one in looked:
            self._heard[one.target] = one.changed
            if one.look_at is not None:
                self._timers[one.target] = one.look_at
        return looked

    def _wait_seconds(self) -> float:
        if self._due:
            return 0.0
        if not self._timers:
            return _POLL_SECONDS
        until = (min(self._timers.values()) - self._now) / 1e6
        return min(max(until, 0.0005), _POLL_SECONDS)

    def _run(self) -> None:
        while not self._stopping:
            self._waking.clear()
            pause = self._safely(self._round)
            if pause is None:
                return
            self._waking.wait(pause)
        self._leave()

    def _round(self) -> float:
        self.step()
        return self._wait_seconds()

    def _tend(self) -> None:
        """Do what needs Kafka, apart from the rounds: if Kafka is away, these go on."""
        while not self._stopping:
            pause = self._safely(self._chore)
            if pause is None:
                return
            self._ending.wait(pause)

    def _chore(self) -> float:
        self._backend.tend_topics(tuple(self._share.leases))
        return _CHORES_SECONDS

    def _safely(self, action: Callable[[], float]) -> float | None:
        """Do something, and return how long to pause after it, whatever it comes to; None if the home is closed."""
        try:
            return action()
        except HomeClosed:
            return None
        except FloodmarkError as error:
            _LOG.warning("The controller %s goes on after: %s", self.name, error)
        except Exception:
            _LOG.exception("The controller %s goes on after an error.", self.name)
        return _PAUSE_SECONDS

    def _leave(self) -> None:
        try:
            self._share.leave()
        except FloodmarkError as error:
            # The others then wait for the end of the ttl.
            _LOG.warning("The controller %s could not say goodbye: %s", self.name, error)

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
    """The buckets that one controller has leased. It is brought up to date by `keep`, which the controller calls often.

    Who is alive shares the buckets evenly; a bucket moves when its owner gives it up, or is not heard for a `ttl`.
    """

    home: Home
    name: str
    ttl: int
    leases: dict[int, Lease] = field(default_factory=dict)
    _member: Member | None = None
    _beat_at: int | None = None
    _share_at: int | None = None
    _seen: dict[str, int] = field(default_factory=dict)

    def keep(self, now: int) -> None:
        """Give signs of life, renew, take and give up, as far as it is time."""
        if self._beat_at is None or not 0 <= now - self._beat_at < self.ttl // 3:
            self._beat(now)
        seen = self.home.changes(MEMBERS_TOPIC, LEASES_TOPIC)
        if seen == self._seen and self._share_at is not None and 0 < self._share_at - now <= self.ttl:
            return
        # Remembered before it is acted on: what comes in between is then acted on next time.
        self._seen = seen
        self._share_out(now)

    def drop_lost(self) -> None:
        """Find out which leases still hold."""
        kept = Leases(self.home).renew_all(self.leases.values())
        self.leases = {_leased_bucket(lease): lease for lease in kept}

    def leave(self) -> None:
        """Give everything up, so that others need not wait."""
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

    def _share_out(self, now: int) -> None:
        leases = Leases(self.home)
        alive = [member.name for member in Members(self.home).alive()]
        held = {_leased_bucket(lease): lease.owner for lease in leases.held(_LEASE_PREFIX)}
        wanted = assign_buckets(BUCKETS, alive, held)
        mine = {bucket for bucket, owner in wanted.items() if owner == self.name}
        for bucket in sorted(set(self.leases) - mine):
            leases.release(self.leases.pop(bucket))
        for bucket in sorted(mine - set(self.leases)):
            if held.get(bucket, self.name) != self.name:
                # It is asked for again when it is given up, or has expired.
                continue
            lease = leases.acquire(_lease_name(bucket), self.name, self.ttl)
            if lease is not None:
                self.leases[bucket] = lease
        is_whole = mine == set(self.leases)
        self._share_at = now + (self.ttl // 3 if is_whole else self.ttl // 20)


def _lease_name(bucket: int) -> str:
    return f"{_LEASE_PREFIX}{bucket}"


def _leased_bucket(lease: Lease) -> int:
    return int(lease.name.removeprefix(_LEASE_PREFIX))
