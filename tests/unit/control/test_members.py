"""Claims about members, with a clock that the test moves, in SQLite and in PostgreSQL."""

from dataclasses import replace

import pytest

from floodmark.control import Home, Members
from floodmark.control.members import MEMBERS_TOPIC
from floodmark.errors import FloodmarkError, UnknownMember
from floodmark.testing import ManualClock

START, TTL = 1_000_000, 100


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START)


@pytest.fixture
def members(home: Home) -> Members:
    return Members(home)


def alive(members: Members) -> list[str]:
    return [member.name for member in members.alive()]


def test_who_joins_is_alive_until_it_leaves(members: Members) -> None:
    b, a = members.join("b", TTL), members.join("a", TTL)
    assert members.alive() == (a, b)
    assert (a.joined_at, a.beat_at, a.ttl) == (START, START, TTL)
    assert members.leave(a)
    assert not members.leave(a)
    assert members.alive() == (b,)


def test_who_is_silent_for_its_ttl_is_not_alive_and_who_beats_is(members: Members, clock: ManualClock) -> None:
    quiet, loud = members.join("quiet", TTL), members.join("loud", TTL)
    clock.advance(TTL - 1)
    assert members.beat(loud) == replace(loud, beat_at=START + TTL - 1)
    assert alive(members) == ["loud", "quiet"]
    clock.advance(1)
    assert alive(members) == ["loud"]
    assert members.beat(quiet).name == "quiet", "it was only slow"
    assert alive(members) == ["loud", "quiet"]


def test_the_dead_are_forgotten_when_somebody_joins_and_must_join_again(members: Members, clock: ManualClock) -> None:
    dead = members.join("dead", TTL)
    clock.advance(TTL)
    members.join("new", TTL)
    with pytest.raises(UnknownMember, match="Join again"):
        members.beat(dead)
    members.join("dead", TTL)
    assert alive(members) == ["dead", "new"]


def test_who_joins_under_a_name_takes_the_place_of_the_earlier_one(members: Members) -> None:
    earlier, later = members.join("a", TTL), members.join("a", TTL)
    with pytest.raises(UnknownMember) as refusal:
        members.beat(earlier)
    assert refusal.value.fields == {"member": "a", "instance": earlier.instance}
    assert not members.leave(earlier)
    assert members.alive() == (later,)


def test_a_beat_after_leaving_brings_nobody_back(members: Members) -> None:
    member = members.join("a", TTL)
    members.leave(member)
    with pytest.raises(UnknownMember):
        members.beat(member)
    assert alive(members) == []


def test_after_the_clock_went_back_the_dead_do_not_live_until_it_is_where_it_was(
    members: Members, clock: ManualClock
) -> None:
    members.join("dead", TTL)
    living = members.join("living", TTL)
    clock.advance(-500_000)
    members.beat(living)
    assert alive(members) == ["dead", "living"], "it has not had its time"
    clock.advance(TTL)
    members.beat(living)
    assert alive(members) == ["living"]


def test_coming_and_going_is_announced_and_a_beat_is_not(members: Members, home: Home) -> None:
    def changes() -> int:
        return home.changes(MEMBERS_TOPIC)[MEMBERS_TOPIC]

    member = members.join("a", TTL)
    members.beat(member)
    assert changes() == 1
    members.leave(member)
    members.leave(member)
    assert changes() == 2


@pytest.mark.parametrize(("name", "ttl", "code"), [("", TTL, "invalid-value"), ("a", 0, "invalid-option")])
def test_bad_input_is_refused_and_changes_nothing(members: Members, name: str, ttl: int, code: str) -> None:
    with pytest.raises(FloodmarkError) as refusal:
        members.join(name, ttl)
    assert refusal.value.code == code
    assert members.alive() == ()
