"""The share of a controller: which buckets it looks after, as controllers come, go and die."""

from dataclasses import dataclass, field
from typing import Final

from floodmark.control import Home, Lease, Leases, Member, Members
from floodmark.control.leases import LEASES_TOPIC
from floodmark.control.members import MEMBERS_TOPIC
from floodmark.errors import UnknownMember
from floodmark.streams._buckets import spread
from floodmark.streams._catalog import BUCKETS

_PREFIX: Final = "bucket/"


@dataclass(slots=True)
class Share:
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
        self.leases = {_bucket(lease): lease for lease in kept}

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
        held = {_bucket(lease): lease.owner for lease in leases.held(_PREFIX)}
        wanted = spread(BUCKETS, alive, held)
        mine = {bucket for bucket, owner in wanted.items() if owner == self.name}
        for bucket in sorted(set(self.leases) - mine):
            leases.release(self.leases.pop(bucket))
        for bucket in sorted(mine - set(self.leases)):
            if held.get(bucket, self.name) != self.name:
                # It is asked for again when it is given up, or has expired.
                continue
            lease = leases.acquire(_name(bucket), self.name, self.ttl)
            if lease is not None:
                self.leases[bucket] = lease
        is_whole = mine == set(self.leases)
        self._share_at = now + (self.ttl // 3 if is_whole else self.ttl // 20)


def _name(bucket: int) -> str:
    return f"{_PREFIX}{bucket}"


def _bucket(lease: Lease) -> int:
    return int(lease.name.removeprefix(_PREFIX))
