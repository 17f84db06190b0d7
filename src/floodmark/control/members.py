"""Members: the live processes that share the work of a home."""

from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, and_, delete, select, update

from floodmark._util.names import check_id
from floodmark._util.times import check_ttl, past_time
from floodmark.control.home import Home
from floodmark.control.store.base import upsert_row
from floodmark.control.store.change_counters import announce_change
from floodmark.control.tables import MEMBERS
from floodmark.errors import UnknownMember

MEMBERS_TOPIC: Final = "members"
"""Change counter that rises when a member joins or leaves, but not when its heartbeats stop; see `Home.changes`."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process that has joined under a name. `instance` distinguishes it from an earlier process of that name.

    `ttl`, `joined_at` and `beat_at` are in microseconds; the latter two are store times.
    """

    name: str
    instance: str
    ttl: int
    joined_at: int
    beat_at: int


class Members:
    """The live members: processes that have joined, not left, and sent a heartbeat within their `ttl`.

    >>> with Home.open() as home:
    ...     members = Members(home)
    ...     a, b = members.join("controller-a", ttl=10_000_000), members.join("controller-b", ttl=10_000_000)
    ...     left = members.leave(a)
    ...     [member.name for member in members.alive()]
    ['controller-b']

    The list is a hint for sharing out work. Exclusive ownership is guaranteed by `Leases`.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Use the members of this home."""
        self._home = home

    def join(self, name: str, ttl: int) -> Member:
        """Join, replacing an earlier process of this name. Expired members are deleted."""
        check_id("name", name)
        check_ttl(ttl)
        with self._home.write() as connection:
            now = self._home.now(connection)
            member = Member(name, uuid4().hex, ttl, now, now)
            upsert_row(
                connection,
                MEMBERS,
                {"name": name, "instance": member.instance, "ttl": ttl, "joined_at": now, "beat_at": now},
            )
            announce_change(connection, MEMBERS_TOPIC)
        with self._home.write() as connection:
            _delete_expired(connection, self._home.now(connection))
        return member

    def beat(self, member: Member) -> Member:
        """Send a heartbeat, or raise `UnknownMember` if the member has left, has expired or was replaced.

        >>> with Home.open() as home:
        ...     members = Members(home)
        ...     old, new = members.join("controller-a", ttl=10_000_000), members.join("controller-a", ttl=10_000_000)
        ...     members.beat(old)
        Traceback (most recent call last):
        floodmark.errors.UnknownMember: The member 'controller-a' has left, has expired, or ... [unknown-member]
        """
        with self._home.write() as connection:
            now = self._home.now(connection)
            if not connection.execute(update(MEMBERS).where(_matches(member)).values(beat_at=now)).rowcount:
                raise UnknownMember(
                    f"The member {member.name!r} has left, has expired, or was replaced by another process.",
                    rule="A member sends a heartbeat within its ttl, and each process has its own name.",
                    remedy="Join again; if another process uses the name, join under a different one.",
                    member=member.name,
                    instance=member.instance,
                )
        return replace(member, beat_at=now)

    def leave(self, member: Member) -> bool:
        """Leave at once instead of expiring after the ttl; return False if the member had already gone."""
        with self._home.write() as connection:
            has_left = connection.execute(delete(MEMBERS).where(_matches(member))).rowcount == 1
            if has_left:
                announce_change(connection, MEMBERS_TOPIC)
        return has_left

    def alive(self) -> tuple[Member, ...]:
        """Return the live members, sorted by name.

        If the clock was set back, a dead member expires one `ttl` after the next call.
        """
        with self._home.read() as connection:
            rows = connection.execute(select(MEMBERS)).all()
            now = self._home.now(connection)
        members = [Member(*row) for row in rows]
        if any(member.beat_at > now for member in members):
            self._home.rewind_times(MEMBERS.c.beat_at, MEMBERS.c.name)
        live = (member for member in members if now < past_time(member.beat_at, now) + member.ttl)
        return tuple(sorted(live, key=lambda member: member.name))


def _delete_expired(connection: Connection, now: int) -> None:
    # Skip locked rows: two members joining at the same time could deadlock.
    dead = select(MEMBERS.c.name).where(MEMBERS.c.beat_at + MEMBERS.c.ttl <= now).with_for_update(skip_locked=True)
    names = connection.execute(dead).scalars().all()
    if names:
        connection.execute(delete(MEMBERS).where(MEMBERS.c.name.in_(names)))


def _matches(member: Member) -> Any:
    return and_(MEMBERS.c.name == member.name, MEMBERS.c.instance == member.instance)
