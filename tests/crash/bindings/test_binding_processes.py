"""Bindings that several processes make at once, some of which are killed, in SQLite and in PostgreSQL."""

import signal
from collections.abc import Iterator
from itertools import pairwise

import pytest

from floodmark.bindings import Bindings
from floodmark.bindings.minting import FAILPOINTS
from floodmark.control import Home
from support.bindings.binding_processes import mint_against_others, mint_and_die, run, tick_against_others
from support.bindings.bound_sources import check_rows
from support.racing import Racers


@pytest.fixture
def shared(place: str) -> Iterator[Bindings]:
    with Home.open(place) as home:
        bindings = Bindings(home)
        bindings.register("S", kind="stream", identity=1, tick="100 milliseconds")
        yield bindings
        check_rows(home)


def test_of_processes_that_mint_at_once_each_timestamp_is_closed_by_one(
    place: str, shared: Bindings, racers: Racers
) -> None:
    results = racers.race(mint_against_others, place)
    won = sorted(binding for bindings, _, _ in results for binding in bindings)
    assert len(won) == 4 * 30
    assert sum(lost for _, lost, _ in results) > 0, "they met"
    history = shared.history("S")
    chain = [history.origin, *(after for _, after, _ in won)]
    assert [before for before, _, _ in won] == chain[:-1], "no fork and no gap"
    assert history.upper == chain[-1]
    for (_, _, ends), (_, _, later) in pairwise(won):
        assert all(later[partition] >= end for partition, end in ends.items())
    for before, after, ends in won:
        assert history.cut_at(after - 1) == ends
        assert history.watermark_at(after - 1) == {"at": min(ends.values())}
        assert all(
            before <= pair.ts < after and pair.end == ends[pair.partition] for pair in history.pairs(before, after)
        )
    for _, _, looked_up in results:
        assert {offset: history.ts_of(1, offset) for offset in looked_up} == looked_up, "what was told stays true"


def test_of_processes_that_tick_hold_and_compact_at_once_none_is_led_astray(
    place: str, shared: Bindings, racers: Racers
) -> None:
    shared.alter("S", compaction_window="200 milliseconds")
    tick, home = 100_000, shared._home
    started = home.now() // tick
    results = racers.race(tick_against_others, place)
    minted = sum(count for count, _ in results)
    assert 3 <= minted <= home.now() // tick - started + 1, "at most one in each interval, whoever does it"
    history = shared.history("S")
    assert max(upper for _, upper in results) <= history.upper
    assert history.is_compacted
    assert history.pairs() == Bindings(home).history("S").pairs()


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_process_killed_while_it_mints_leaves_all_of_it_or_nothing(
    place: str, shared: Bindings, failpoint: str
) -> None:
    first = shared.mint("S", {0: 5, 1: 2}, {"at": 50}, expected_upper=shared.durable("S"))
    assert run(mint_and_die, place, failpoint, {0: 8, 1: 2, 2: 4}) == -signal.SIGKILL
    after = Bindings(shared._home).history("S")
    assert [after.ts_of(0, offset) for offset in range(5)] == [first.ts_of(0, offset) for offset in range(5)]
    if failpoint == "mint: after the commit":
        assert (after.ends, after.watermarks) == ({0: 8, 1: 2, 2: 4}, {"at": 70})
        assert after.upper > first.upper
    else:
        assert (after.pairs(), after.watermarks, after.upper) == (first.pairs(), {"at": 50}, first.upper)
    # Scenario 11: whatever was not stored gets a timestamp that is not lower than the one it would have had.
    again = shared.mint("S", {0: 8, 1: 2, 2: 4}, {"at": 70}, expected_upper=after.upper)
    assert all((again.ts_of(0, offset) or 0) >= first.upper for offset in (5, 6, 7))
    assert (again.ends, again.watermarks) == ({0: 8, 1: 2, 2: 4}, {"at": 70})
