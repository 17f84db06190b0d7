"""Claims about leases, with a clock that the test moves, in SQLite and in PostgreSQL."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from floodmark.control import Home, Lease, Leases, WatermarkSteps
from floodmark.control.leases import LEASES_TOPIC
from floodmark.control.store import sqlite as _sqlite
from floodmark.errors import FloodmarkError, LeaseLost
from floodmark.testing import ManualClock
from support.examples import examples

START, TTL = 1_000_000, 100


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def leases(home: Home) -> Leases:
    return Leases(home)


def taken(leases: Leases, owner: str, name: str = "work", ttl: int = TTL) -> Lease:
    lease = leases.acquire(name, owner, ttl)
    assert lease is not None
    return lease


def is_lost(leases: Leases, home: Home, lease: Lease) -> bool:
    try:
        with home.write() as connection:
            leases.check(connection, lease)
    except LeaseLost:
        return True
    return False


def test_one_has_a_lease_and_others_do_not_get_it(leases: Leases) -> None:
    assert taken(leases, "a") == Lease("work", "a", 1, TTL, START)
    assert leases.acquire("work", "b", TTL) is None
    assert taken(leases, "b", "other work").token == 1


def test_a_lease_can_be_taken_when_its_time_is_over_and_not_before(leases: Leases, clock: ManualClock) -> None:
    first = taken(leases, "a")
    clock.advance(TTL - 1)
    assert leases.acquire("work", "b", TTL) is None
    clock.advance(1)
    assert first.expires_at == clock.now()
    assert taken(leases, "b") == Lease("work", "b", 2, TTL, START + TTL)


def test_who_renews_keeps_it(leases: Leases, clock: ManualClock) -> None:
    lease = taken(leases, "a")
    for _ in range(5):
        clock.advance(TTL - 1)
        lease = leases.renew(lease)
        assert leases.acquire("work", "b", TTL) is None
    assert lease == Lease("work", "a", 1, TTL, START + 5 * (TTL - 1))


def test_one_that_has_expired_is_its_owners_until_another_takes_it(
    leases: Leases, home: Home, clock: ManualClock
) -> None:
    lease = taken(leases, "a")
    clock.advance(10 * TTL)
    assert not is_lost(leases, home, lease)
    assert leases.renew(lease).renewed_at == clock.now()
    clock.advance(TTL)
    taken(leases, "b")
    assert is_lost(leases, home, lease)
    with pytest.raises(LeaseLost, match="owner is now 'b', with token 2") as refusal:
        leases.renew(lease)
    assert refusal.value.fields == {"name": "work", "owner": "a", "token": 1, "found_owner": "b", "found_token": 2}


def test_what_is_released_can_be_taken_at_once_and_its_token_goes_on(leases: Leases, home: Home) -> None:
    first = taken(leases, "a")
    assert leases.release(first)
    assert is_lost(leases, home, first)
    assert not leases.release(first)
    with pytest.raises(LeaseLost, match="owner is now none"):
        leases.renew(first)
    assert taken(leases, "b").token == 2


def test_a_release_that_comes_too_late_takes_nothing_from_the_next_owner(
    leases: Leases, home: Home, clock: ManualClock
) -> None:
    first = taken(leases, "a")
    clock.advance(TTL)
    second = taken(leases, "b")
    assert not leases.release(first)
    assert not is_lost(leases, home, second)


def test_an_owner_that_starts_anew_gets_it_at_once_and_its_older_self_has_lost_it(leases: Leases, home: Home) -> None:
    older, newer = taken(leases, "a"), taken(leases, "a")
    assert (older.token, newer.token) == (1, 2)
    assert (is_lost(leases, home, older), is_lost(leases, home, newer)) == (True, False)


def test_a_write_of_one_that_was_fenced_off_is_refused_as_a_whole(
    leases: Leases, home: Home, clock: ManualClock
) -> None:
    steps, old = WatermarkSteps(home), taken(leases, "a")
    clock.advance(TTL)
    taken(leases, "b")

    def write_then_check() -> None:
        with home.write() as connection:
            connection.execute(text("INSERT INTO watermark_incarnation VALUES ('lost', '{}', NULL, NULL, 0)"))
            leases.check(connection, old)

    with pytest.raises(LeaseLost, match="reload all state"):
        write_then_check()
    with pytest.raises(FloodmarkError, match="no incarnation"):
        steps.incarnation("lost")


def test_a_lease_that_nobody_ever_had_is_lost(leases: Leases, home: Home) -> None:
    never = Lease("never", "a", 1, TTL, START)
    assert is_lost(leases, home, never)
    assert not leases.release(never)


def test_many_are_renewed_at_once_but_for_the_lost(leases: Leases, clock: ManualClock) -> None:
    mine = [taken(leases, "a", name) for name in ("w3", "w1", "w2")]
    leases.release(mine[1])
    taken(leases, "b", "w1")
    clock.advance(5)
    assert leases.renew_all(mine) == tuple(replace(mine[at], renewed_at=START + 5) for at in (2, 0))
    assert leases.renew_all([]) == ()


def test_those_held_are_listed_by_the_beginning_of_their_names(leases: Leases, clock: ManualClock) -> None:
    expired = taken(leases, "a", "bucket/3", ttl=5)
    clock.advance(expired.ttl)
    leases.release(taken(leases, "a", "bucket/2"))
    held = [taken(leases, owner, name) for owner, name in (("b", "bucket/10"), ("a", "bucket/9"), ("c", "Bucket/1"))]
    assert leases.held("bucket/") == (held[0], held[1])
    assert leases.held("bucket_") == leases.held("bucket%") == ()
    assert set(leases.held()) == set(held)


def test_a_change_of_owner_is_announced_and_a_renewal_is_not(leases: Leases, home: Home) -> None:
    def changes() -> int:
        return home.changes(LEASES_TOPIC)[LEASES_TOPIC]

    lease = taken(leases, "a")
    assert changes() == 1
    leases.renew(lease)
    leases.acquire("work", "b", TTL)
    assert changes() == 1
    leases.release(lease)
    leases.release(lease)
    assert changes() == 2


def test_after_the_clock_went_back_a_lease_lasts_one_ttl_and_not_until_the_clock_is_where_it_was(
    leases: Leases, clock: ManualClock
) -> None:
    taken(leases, "a")
    clock.advance(-500_000)
    assert leases.acquire("work", "b", TTL) is None, "the owner may be alive, and has not had its time"
    clock.advance(TTL - 1)
    assert leases.acquire("work", "b", TTL) is None
    clock.advance(1)
    assert taken(leases, "b").token == 2


def test_after_the_clock_went_back_who_renews_keeps_it(leases: Leases, clock: ManualClock) -> None:
    lease = taken(leases, "a")
    clock.advance(-500_000)
    for _ in range(3):
        lease = leases.renew(lease)
        clock.advance(TTL - 1)
        assert leases.acquire("work", "b", TTL) is None
        assert leases.held() == (lease,)


REFUSED: dict[str, tuple[Callable[[Leases], Any], str]] = {
    "empty name": (lambda leases: leases.acquire("", "a", 1), "invalid-value"),
    "no owner": (lambda leases: leases.acquire("work", None, 1), "invalid-value"),  # type: ignore[arg-type]
    "NUL in a name": (lambda leases: leases.acquire("a\0b", "a", 1), "invalid-value"),
    "no time": (lambda leases: leases.acquire("work", "a", 0), "invalid-option"),
    "for ever": (lambda leases: leases.acquire("work", "a", 2**62), "invalid-option"),
    "seconds as float": (lambda leases: leases.acquire("work", "a", 0.5), "not-int64"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(("action", "code"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_changes_nothing(leases: Leases, action: Callable[[Leases], Any], code: str) -> None:
    with pytest.raises(FloodmarkError) as refusal:
        action(leases)
    assert refusal.value.code == code
    assert leases.held() == ()


@pytest.fixture(scope="module")
def played(new_place: Callable[[], str]) -> Iterator[tuple[Home, ManualClock]]:
    clock = ManualClock(START)
    with Home.open(new_place(), clock=clock.now) as home:
        yield home, clock


OWNERS = ("a", "b", "c")
MOVES = st.one_of(
    st.tuples(st.just("advance"), st.sampled_from((1, TTL - 1, TTL, 3 * TTL, -1, -TTL, -1000))),
    st.tuples(st.sampled_from(("acquire", "acquire", "renew", "release", "write")), st.sampled_from(OWNERS)),
)
names = count()


@dataclass
class Model:
    """What should be: who has the lease, under which token, and from when on another may take it."""

    owner: str | None = None
    token: int = 0
    renewed_at: int = 0
    last: dict[str, Lease] = field(default_factory=dict)

    def may_take(self, owner: str, now: int) -> bool:
        return self.owner in (None, owner) or now >= self.renewed_at + TTL

    def has(self, lease: Lease) -> bool:
        return (lease.owner, lease.token) == (self.owner, self.token)


@settings(max_examples=examples(30))
@given(st.lists(MOVES, max_size=25))
def test_never_do_two_have_a_lease_whatever_they_and_the_clock_do(
    played: tuple[Home, ManualClock], moves: list[tuple[str, Any]]
) -> None:
    home, clock = played
    leases, model, name = Leases(home), Model(), f"work {next(names)}"
    for move, about in moves:
        if move == "advance":
            clock.advance(about)
        elif move == "acquire":
            lease = leases.acquire(name, about, TTL)
            assert (lease is not None) == model.may_take(about, clock.now())
            if lease is None:
                # Who asks while the clock is behind starts the time of the lease anew.
                model.renewed_at = min(model.renewed_at, clock.now())
            else:
                assert lease.token == model.token + 1
                model.owner, model.token, model.renewed_at = about, lease.token, clock.now()
                model.last[about] = lease
        elif about in model.last:
            lease, had = model.last[about], model.has(model.last[about])
            if move == "renew":
                assert bool(leases.renew_all([lease])) == had
                model.renewed_at = clock.now() if had else model.renewed_at
            elif move == "release":
                assert leases.release(lease) == had
                model.owner = None if had else model.owner
            else:
                assert is_lost(leases, home, lease) != had
        assert sum(model.has(lease) for lease in model.last.values()) <= 1


def test_the_clock_of_the_host_may_go_back(sqlite_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other tests bring a clock. This one turns back the one that SQLite goes by."""
    host = ManualClock(3_600_000_000_000)
    monkeypatch.setattr(_sqlite, "time_ns", host.now)
    with Home.open(sqlite_home.location) as home:
        leases = Leases(home)
        taken(leases, "a")
        host.advance(-1_000_000_000)
        assert leases.acquire("work", "b", TTL) is None
        host.advance(TTL * 1000)
        assert taken(leases, "b").token == 2
