"""Leases: exclusive ownership of a piece of work, with fencing tokens against owners that have lost it."""

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
"""Change counter that rises when a lease is acquired or released; see `Home.changes`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as granted or renewed. The token rises with each acquisition.

    `ttl` and `renewed_at` are in microseconds; `renewed_at` is store time.
    """

    name: str
    owner: str
    token: int
    ttl: int
    renewed_at: int

    @property
    def expires_at(self) -> int:
        """The store time from which another owner may acquire it."""
        return self.renewed_at + self.ttl


class Leases:
    """Named leases with one owner at a time. A lease ends when it is released or not renewed within its `ttl`.

    >>> with Home.open() as home:
    ...     leases = Leases(home)
    ...     lease = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
    ...     lease.token, leases.acquire("bucket/7", "controller-b", ttl=10_000_000)
    (1, None)

    A delayed owner may not know that it has lost the lease. Each transaction it runs under the lease must therefore
    call `check`, which raises `LeaseLost`.

    Only the store's clock counts, read inside the transaction. If that clock is set back, an abandoned lease expires
    one `ttl` after the next call of `acquire` or `held`, not when the clock has caught up.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        """Use the leases of this home."""
        self._home = home

    def acquire(self, name: str, owner: str, ttl: int) -> Lease | None:
        """Return the lease with a new token, or None if another owner holds it. Never blocks.

        An owner that already holds it gets a new token, which fences its earlier instance.
        """
        lease_query = select(LEASES).where(LEASES.c.name == check_id("name", name))
        check_id("owner", owner)
        check_ttl(ttl)
        with self._home.read() as connection:
            seen = connection.execute(lease_query).one_or_none()
            if seen is not None and seen.owner not in (None, owner):
                # Most attempts are refused; refuse them without taking a lock.
                now = self._home.now(connection)
                if seen.renewed_at <= now < seen.renewed_at + seen.ttl:
                    return None
        with self._home.write() as connection:
            if seen is None:
                free_lease = {"name": name, "owner": None, "token": 0, "ttl": ttl, "renewed_at": 0}
                insert_if_absent(connection, LEASES, free_lease)
            row = connection.execute(lease_query.with_for_update(skip_locked=True)).one_or_none()
            if row is None:
                # Another transaction is renewing, acquiring or checking it.
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
        """Extend a lease to one `ttl` from now, or raise `LeaseLost`.

        An expired lease can be renewed as long as no other owner has acquired it.
        """
        kept = self.renew_all((lease,))
        if kept:
            return kept[0]
        with self._home.read() as connection:
            raise _lease_lost(
                lease, connection.execute(select(LEASES).where(LEASES.c.name == lease.name)).one_or_none()
            )

    def renew_all(self, leases: Iterable[Lease]) -> tuple[Lease, ...]:
        """Renew many leases in one transaction; return those that are not lost, sorted by name."""
        kept = []
        with self._home.write() as connection:
            now = self._home.now(connection)
            # Lock leases in name order to avoid deadlocks.
            for lease in sorted(leases, key=lambda lease: lease.name):
                if connection.execute(update(LEASES).where(_matches(lease)).values(renewed_at=now)).rowcount:
                    kept.append(replace(lease, renewed_at=now))
        return tuple(kept)

    def release(self, lease: Lease) -> bool:
        """Release a lease so that another owner can acquire it at once; return False if it was already lost."""
        with self._home.write() as connection:
            is_released = connection.execute(update(LEASES).where(_matches(lease)).values(owner=None)).rowcount == 1
            if is_released:
                announce_change(connection, LEASES_TOPIC)
        return is_released

    def held(self, prefix: str = "") -> tuple[Lease, ...]:
        """Return the unexpired leases whose names start with `prefix`, sorted by name.

        >>> with Home.open() as home:
        ...     leases = Leases(home)
        ...     lease = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
        ...     [(lease.name, lease.owner) for lease in leases.held("bucket/")]
        [('bucket/7', 'controller-a')]
        """
        has_prefix = func.substr(LEASES.c.name, 1, len(prefix)) == prefix
        with self._home.read() as connection:
            rows = connection.execute(select(LEASES).where(has_prefix, LEASES.c.owner.is_not(None))).all()
            now = self._home.now(connection)
        leases = [Lease(row.name, row.owner, row.token, row.ttl, row.renewed_at) for row in rows]
        if any(lease.renewed_at > now for lease in leases):
            self._home.rewind_times(LEASES.c.renewed_at, LEASES.c.name)
        return tuple(sorted((lease for lease in leases if now < lease.expires_at), key=lambda lease: lease.name))

    @staticmethod
    def check(connection: Connection, lease: Lease) -> None:
        """Raise `LeaseLost` if the lease is lost; otherwise lock it against other owners until the transaction ends.

        >>> with Home.open() as home:
        ...     leases = Leases(home)
        ...     first = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
        ...     second = leases.acquire("bucket/7", "controller-a", ttl=10_000_000)
        ...     with home.write() as connection:
        ...         leases.check(connection, first)
        Traceback (most recent call last):
        floodmark.errors.LeaseLost: The lease 'bucket/7' of 'controller-a' with token ... [lease-lost]
        """
        # A shared lock: other checks may run too, but the lease cannot be acquired before this transaction ends.
        locked = select(LEASES).where(LEASES.c.name == lease.name).with_for_update(read=True)
        row = connection.execute(locked).one_or_none()
        if row is None or (row.owner, row.token) != (lease.owner, lease.token):
            raise _lease_lost(lease, row)


def _matches(lease: Lease) -> Any:
    return and_(LEASES.c.name == lease.name, LEASES.c.owner == lease.owner, LEASES.c.token == lease.token)


def _lease_lost(lease: Lease, row: Row[Any] | None) -> LeaseLost:
    owner, token = (None, 0) if row is None else (row.owner, row.token)
    return LeaseLost(
        f"The lease {lease.name!r} of {lease.owner!r} with token {lease.token} is lost: its owner is now "
        f"{'none' if owner is None else repr(owner)}, with token {token}.",
        rule="A lease that is released or not renewed within its ttl can be acquired by another owner; only the newest "
        "token is valid.",
        remedy="Stop the work done under this lease; acquire it again and reload all state before you continue.",
        name=lease.name,
        owner=lease.owner,
        token=lease.token,
        found_owner=owner,
        found_token=token,
    )
