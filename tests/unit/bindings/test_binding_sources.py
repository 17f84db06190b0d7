"""Claims about sources: registered, altered, found and dropped, in SQLite and in PostgreSQL."""

from typing import Any

import pytest
from sqlalchemy import update

from floodmark.bindings import Bindings
from floodmark.bindings.tables import SOURCES
from floodmark.control import Home
from floodmark.errors import FloodmarkError, InvalidOption, InvalidValue, NotJson, SourceRecreated, UnknownSource
from floodmark.testing import ManualClock
from support.bindings.bound_sources import MS, Source, count

TOPIC = {"cluster": "c1", "topic_id": "Ab3"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(500 * MS)


@pytest.fixture
def source(home: Home, clock: ManualClock) -> Source:
    return Source(home, clock)


@pytest.fixture
def bindings(source: Source) -> Bindings:
    return source.bindings


def test_to_register_a_source_twice_changes_nothing(bindings: Bindings, clock: ManualClock) -> None:
    first = bindings.register("orders", kind="kafka", identity=TOPIC, tick="2 seconds", compaction_window="1 day")
    clock.advance(10**9)
    assert bindings.register("orders", kind="kafka", identity=dict(reversed(TOPIC.items()))) == first
    assert bindings.register("orders", kind="kafka", identity=TOPIC, tick="2 seconds") == first
    assert (first.tick, first.compaction_window, first.release_after) == (2_000_000, 86_400_000_000, None)
    assert first.origin == first.since == first.upper == first.created_at == 500 * MS
    assert [one.source for one in bindings.sources()] == ["S", "orders"]


def test_an_identity_is_compared_as_json(bindings: Bindings) -> None:
    bindings.register("t", kind="kafka", identity=("c1", 7))
    assert bindings.register("t", kind="kafka", identity=["c1", 7]).identity == ["c1", 7]


def test_a_recreated_topic_is_refused_with_both_identities(bindings: Bindings) -> None:
    bindings.register("orders", kind="kafka", identity=TOPIC)
    other = {**TOPIC, "topic_id": "Zz9"}
    tries: list[Any] = [
        lambda: bindings.register("orders", kind="kafka", identity=other),
        lambda: bindings.tick("orders", lambda: {0: 5}, identity=other),
        lambda: bindings.mint("orders", {0: 5}, expected_upper=500 * MS, identity=other),
    ]
    for one in tries:
        with pytest.raises(SourceRecreated) as refusal:
            one()
        assert refusal.value.fields == {"source": "orders", "identity": other, "bound": TOPIC}
    assert bindings.history("orders").pairs() == ()
    assert bindings.tick("orders", lambda: {0: 5}, identity=TOPIC).minted


def test_other_settings_are_refused_until_they_are_altered(bindings: Bindings) -> None:
    with pytest.raises(InvalidOption, match=r"registered with \{'tick': 1000000\}, and now with \{'tick': 5000000\}"):
        bindings.register("S", kind="stream", identity={"stream": 1}, tick="5 seconds")
    with pytest.raises(InvalidOption, match="'kind': 'stream'"):
        bindings.register("S", kind="kafka", identity={"stream": 1})
    altered = bindings.alter("S", tick="5 seconds", compaction_window="1 minute")
    assert (altered.tick, altered.compaction_window) == (5_000_000, 60_000_000)
    assert bindings.alter("S", compaction_window=None).compaction_window is None
    assert bindings.alter("S") == bindings.source("S")


def test_a_new_source_keeps_seven_days_and_a_registered_one_what_it_had(bindings: Bindings, home: Home) -> None:
    week = 7 * 86_400 * 1_000_000
    assert bindings.register("new", kind="kafka", identity=1).compaction_window == week
    assert bindings.register("all", kind="kafka", identity=1, compaction_window="never").compaction_window is None
    # As a home of an earlier version has recorded it.
    with home.write() as connection:
        connection.execute(update(SOURCES).where(SOURCES.c.source == "new").values(compaction_window=None))
    assert bindings.register("new", kind="kafka", identity=1).compaction_window is None
    with pytest.raises(InvalidOption, match="floodmark bindings alter"):
        bindings.register("new", kind="kafka", identity=1, compaction_window="7 days")


def test_a_hold_wins_over_the_window(bindings: Bindings, clock: ManualClock) -> None:
    first = bindings.register("new", kind="kafka", identity=1).origin
    bindings.tick("new", {0: 1})
    bindings.hold("new", "query", first)
    for day in range(2, 20):
        clock.advance(3_000 * 1_000_000)
        bindings.tick("new", {0: day})
    bindings.alter("new", compaction_window="1 hour")
    assert bindings.compact("new").since == first
    bindings.release("new", "query")
    assert bindings.compact("new").since == bindings.source("new").upper - 3_600 * 1_000_000


BAD_SOURCES: dict[str, tuple[dict[str, Any], type[FloodmarkError], str]] = {
    "no id": ({"source": ""}, InvalidValue, "The source is ''"),
    "an id that no terminal shows": ({"source": "a\nb"}, InvalidValue, "printable"),
    "an identity that is no JSON": ({"identity": object()}, NotJson, "identity"),
    "a short tick": ({"tick": "99 milliseconds"}, InvalidOption, "at least 100000 microseconds"),
    "no tick": ({"tick": None}, InvalidOption, "tick is None"),
    "a negative window": ({"compaction_window": "-1 seconds"}, InvalidOption, "compaction_window"),
    "a misspelled option": ({"tik": "1 second"}, InvalidOption, "Did you mean 'tick'"),
}


@pytest.mark.parametrize(("given", "error", "reason"), BAD_SOURCES.values(), ids=BAD_SOURCES)
def test_a_source_that_cannot_be_is_refused(
    bindings: Bindings, given: dict[str, Any], error: type[FloodmarkError], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        bindings.register(**{"source": "new", "kind": "kafka", "identity": 1, **given})
    assert len(bindings.sources()) == 1


def test_a_source_that_is_not_there_is_named_with_its_neighbour(bindings: Bindings) -> None:
    bindings.register("orders", kind="kafka", identity=TOPIC)
    calls: list[Any] = [
        lambda: bindings.source("ordrs"),
        lambda: bindings.history("ordrs"),
        lambda: bindings.tick("ordrs", {0: 1}),
        lambda: bindings.hold("ordrs", "k", 1),
        lambda: bindings.compact("ordrs"),
        lambda: bindings.drop("ordrs"),
        lambda: bindings.holds("ordrs"),
    ]
    for call in calls:
        with pytest.raises(UnknownSource, match="Did you mean 'orders'"):
            call()


def test_d7_a_dropped_source_leaves_nothing_and_starts_anew(source: Source, home: Home) -> None:
    source.bindings.register("other", kind="kafka", identity=1)
    source.at(1200).tick(p0=5)
    source.hold("K", 500)
    source.bindings.tick("S", {0: 5}, {"at": 1})
    source.bindings.drop("S")
    assert source.bindings._histories._histories == {}
    assert count(home) == {"source": 1, "pair": 0, "watermark": 0, "hold": 0}
    with pytest.raises(UnknownSource):
        source.history  # noqa: B018
    source.at(9000).bindings.register("S", kind="stream", identity={"stream": 2})
    assert (source.upper, source.history.pairs()) == (9000, ())
