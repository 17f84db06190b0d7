"""Leases: of several processes one does a piece of work, and who has lost it cannot go on by mistake."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Connection, Row, and_, func, select, update

from floodmark._util.names import check_id
from floodmark._util.times import check_ttl
from floodmark.control.home import Home
from floodmark.control.store.base import insert_if_absent
from floodmark.control.store.change_counters import announce_change
from floodmark.control.tables import LEASES
from floodmark.errors import LeaseLost

LEASES_TOPIC: Final = "leases"
"""What changes when a lease gets another owner, or none: see `Home.changes`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was granted or renewed. Whoever gets it next has a higher token.

    `ttl` and `renewed_at` are microseconds, the latter by the store's clock.
    """

    name: str
    owner: str
    token: int
    ttl: int
    renewed_at: int

    @property
    def expires_at(self) -> int:
        """From when on somebody else may take it."""
        return self.renewed_at + self.ttl


class Leases:
    """Named leases, each of which one owner has at a time, until it is released or not renewed for its `ttl`.

    >>> with Home.open() as home:
    ...     leases = Leases(home)
    ...     lease = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
    ...     lease.token, leases.acquire("bucket/7", "controller-b", ttl=10_000_000)
    (1, None)

    An owner that was held up may still believe that it has the lease. So whatever it does under the lease, it does in
    a transaction that calls `check`, which then fails.

    Only the store's clock is asked, inside of the transaction. If that clock goes back, a lease that nobody renews
    lasts one `ttl` from when somebody next asks for it, not until the clock is again where it was.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Keep them in this home."""
        self._home = home

    def acquire(self, name: str, owner: str, ttl: int) -> Lease | None:
        """Return the lease under a new token, or None if somebody else has it. It never waits.

        An owner that has it already gets it anew: then an older instance of that owner has lost it.
        """
        wanted = select(LEASES).where(LEASES.c.name == check_id("name", name))
        check_id("owner", owner)
        check_ttl(ttl)
        with self._home.read() as connection:
            seen = connection.execute(wanted).one_or_none()
            if seen is not None and seen.owner not in (None, owner):
                # Most who ask are refused. To refuse them here spares the others a lock.
                now = self._home.now(connection)
                if seen.renewed_at <= now < seen.renewed_at + seen.ttl:
                    return None
        with self._home.write() as connection:
            if seen is None:
                nobodys = {"name": name, "owner": None, "token": 0, "ttl": ttl, "renewed_at": 0}
                insert_if_absent(connection, LEASES, nobodys)
            row = connection.execute(wanted.with_for_update(skip_locked=True)).one_or_none()
            if row is None:
                # Somebody is just renewing, taking or checking it.
                return None
            now = self._home.now(connection)
            if row.owner not in (None, owner) and now < row.renewed_at + row.ttl:
                if now < row.renewed_at:
                    connection.execute(update(LEASES).where(LEASES.c.name == name).values(renewed_at=now))
                return None
            lease = Lease(name, owner, row.token + 1, ttl, now)
            connection.execute(
                update(LEASES)
                .where(LEASES.c.name == name)
                .values(owner=owner, token=lease.token, ttl=ttl, renewed_at=now)
            )
            announce_change(connection, LEASES_TOPIC)
        return lease

    def renew(self, lease: Lease) -> Lease:
        """Keep a lease for another `ttl` from now, or raise `LeaseLost`.

        One that has expired can be renewed as long as nobody else has taken it.
        """
        kept = self.renew_all((lease,))
        if kept:
            return kept[0]
        with self._home.read() as connection:
            raise _lease_lost(
                lease, connection.execute(select(LEASES).where(LEASES.c.name == lease.name)).one_or_none()
            )

    def renew_all(self, leases: Iterable[Lease]) -> tuple[Lease, ...]:
        """Renew many leases in one transaction; return those that are not lost, by name."""
        kept = []
        with self._home.write() as connection:
            now = self._home.now(connection)
            # In one order, or two owners of many could wait for each other.
            for lease in sorted(leases, key=lambda one: one.name):
                if connection.execute(update(LEASES).where(_matches(lease)).values(renewed_at=now)).rowcount:
                    kept.append(replace(lease, renewed_at=now))
        return tuple(kept)

    def release(self, lease: Lease) -> bool:
        """Give a lease back, so that another can take it at once; return False if it was lost before."""
        with self._home.write() as connection:
            is_released = connection.execute(update(LEASES).where(_matches(lease)).values(owner=None)).rowcount == 1
            if is_released:
                announce_change(connection, LEASES_TOPIC)
        return is_released

    def held(self, prefix: str = "") -> tuple[Lease, ...]:
        """Return the leases whose names begin so and that somebody has, by name.

        >>> with Home.open() as home:
        ...     leases = Leases(home)
        ...     lease = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
        ...     [(one.name, one.owner) for one in leases.held("bucket/")]
        [('bucket/7', 'controller-a')]
        """
        begins_so = func.substr(LEASES.c.name, 1, len(prefix)) == prefix
        with self._home.read() as connection:
            rows = connection.execute(select(LEASES).where(begins_so, LEASES.c.owner.is_not(None))).all()
            now = self._home.now(connection)
        leases = (Lease(row.name, row.owner, row.token, row.ttl, row.renewed_at) for row in rows)
        return tuple(sorted((one for one in leases if now < one.expires_at), key=lambda one: one.name))

    @staticmethod
    def check(connection: Connection, lease: Lease) -> None:
        """Raise `LeaseLost` if the lease is lost; else nobody can take it until the transaction ends.

        >>> with Home.open() as home:
        ...     leases = Leases(home)
        ...     first = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
        ...     second = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
        ...     with home.write() as connection:
        ...         leases.check(connection, first)
        Traceback (most recent call last):
        floodmark.errors.LeaseLost: The lease 'bucket/7' of 'controller-a' with token ... [lease-lost]
        """
        # A lock that others who check may share. Without it the lease could be taken between this look and the end.
        locked = select(LEASES).where(LEASES.c.name == lease.name).with_for_update(read=True)
        row = connection.execute(locked).one_or_none()
        if row is None or (row.owner, row.token) != (lease.owner, lease.token):
            raise _lease_lost(lease, row)


def _matches(lease: Lease) -> Any:
    return and_(LEASES.c.name == lease.name, LEASES.c.owner == lease.owner, LEASES.c.token == lease.token)


def _lease_lost(lease: Lease, row: Row[Any] | None) -> LeaseLost:
    owner, token = (None, 0) if row is None else (row.owner, row.token)
    return LeaseLost(
        f"The lease {lease.name!r} of {lease.owner!r} with token {lease.token} is lost: it belongs to "
        f"{'nobody' if owner is None else repr(owner)}, and its token is {token}.",
        rule="A lease that is released, or not renewed for its ttl, may be taken, and then only the new token counts.",
        remedy="Stop what was done under it; acquire it again before going on, and read everything anew.",
        name=lease.name,
        owner=lease.owner,
        token=lease.token,
        found_owner=owner,
        found_token=token,
    )
