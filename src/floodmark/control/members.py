"""Members: which processes are alive that share the work of a home."""

from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import uuid4

from sqlalchemy import Connection, and_, delete, select, update

from floodmark._util.names import check_id
from floodmark._util.times import check_ttl
from floodmark.control.home import Home
from floodmark.control.store.base import upsert_row
from floodmark.control.store.change_counters import announce_change
from floodmark.control.tables import MEMBERS
from floodmark.errors import UnknownMember

MEMBERS_TOPIC: Final = "members"
"""What changes when a member joins or leaves, not when it falls silent: see `Home.changes`."""


@dataclass(frozen=True, slots=True)
class Member:
    """A process that has joined under a name. `instance` tells it from an earlier one of the same name.

    `ttl`, `joined_at` and `beat_at` are microseconds, the latter two by the store's clock.
    """

    name: str
    instance: str
    ttl: int
    joined_at: int
    beat_at: int


class Members:
    """Who is alive: whoever has joined, has not left, and has given a sign of life within its `ttl`.

    >>> with Home.open() as home:
    ...     members = Members(home)
    ...     a, b = members.join("controller-a", ttl=10_000_000), members.join("controller-b", ttl=10_000_000)
    ...     left = members.leave(a)
    ...     [member.name for member in members.alive()]
    ['controller-b']

    It is a hint by which work is shared out. That nobody does the work of another is for `Leases` to see to.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def join(self, name: str, ttl: int) -> Member:
        """Join, or take the place of an earlier process of this name. Those whose time has run out are forgotten."""
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
        """Give a sign of life, or raise `UnknownMember` if the member has left, or was forgotten, or replaced.

        >>> with Home.open() as home:
        ...     members = Members(home)
        ...     old, new = members.join("controller-a", ttl=10_000_000), members.join("controller-a", ttl=10_000_000)
        ...     members.beat(old)
        Traceback (most recent call last):
        floodmark.errors.UnknownMember: The member 'controller-a' has left, was forgotten, or ... [unknown-member]
        """
        with self._home.write() as connection:
            now = self._home.now(connection)
            if not connection.execute(update(MEMBERS).where(_matches(member)).values(beat_at=now)).rowcount:
                raise UnknownMember(
                    f"The member {member.name!r} has left, was forgotten, or joined again elsewhere.",
                    rule="A member gives a sign of life within its ttl, and each process has a name of its own.",
                    remedy="Join again, unless another process has the name.",
                    member=member.name,
                    instance=member.instance,
                )
            ahead = connection.execute(select(MEMBERS).where(MEMBERS.c.beat_at > now)).all()
        for other in ahead:
            self._bring_back(Member(*other), now)
        return replace(member, beat_at=now)

    def leave(self, member: Member) -> bool:
        """Say goodbye, so that nobody waits for the end of the ttl; return False if the member was gone before."""
        with self._home.write() as connection:
            has_left = connection.execute(delete(MEMBERS).where(_matches(member))).rowcount == 1
            if has_left:
                announce_change(connection, MEMBERS_TOPIC)
        return has_left

    def alive(self) -> tuple[Member, ...]:
        """Return who is alive, by name."""
        with self._home.read() as connection:
            rows = connection.execute(select(MEMBERS)).all()
            now = self._home.now(connection)
        members = (Member(*row) for row in rows)
        return tuple(sorted((one for one in members if now < one.beat_at + one.ttl), key=lambda one: one.name))

    def _bring_back(self, other: Member, now: int) -> None:
        """After the clock has gone back: a member that is dead must not live until the clock is where it was."""
        with self._home.write() as connection:
            unchanged = and_(_matches(other), MEMBERS.c.beat_at == other.beat_at)
            connection.execute(update(MEMBERS).where(unchanged).values(beat_at=now))


def _delete_expired(connection: Connection, now: int) -> None:
    # Never waits, since two who join at the same time could wait for each other.
    dead = select(MEMBERS.c.name).where(MEMBERS.c.beat_at + MEMBERS.c.ttl <= now).with_for_update(skip_locked=True)
    names = connection.execute(dead).scalars().all()
    if names:
        connection.execute(delete(MEMBERS).where(MEMBERS.c.name.in_(names)))


def _matches(member: Member) -> Any:
    return and_(MEMBERS.c.name == member.name, MEMBERS.c.instance == member.instance)
