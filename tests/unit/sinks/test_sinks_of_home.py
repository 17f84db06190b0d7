"""The sinks that a home knows, what they hold, and that a batch goes through gate, target and holds in this order."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import pytest

from floodmark._util.times import as_utc
from floodmark.bindings import Bindings, SourceOffset
from floodmark.bindings.offsets import BatchLimits, next_offset, position_key
from floodmark.control import Home
from floodmark.errors import (
    InvalidValue,
    SinkBatchMisaligned,
    SinkBindingsMissing,
    SinkExists,
    SinkGap,
    SinkVersionOld,
    UnknownSink,
)
from floodmark.sinks import Batch, Begin, Drop, OutRow, Progress, Resume, Sink, Sinks, Start, Write, WriteFrom
from floodmark.sinks.gate import advance_sources
from floodmark.sinks.startup import SourceBounds, StartupState, decide_start
from support.sinks.sink_places import progress
from support.sinks.sink_process import bind, chain


class Kept:
    """A target in memory, which follows the same rules as one in Kafka."""

    sink = "K"
    mode: Literal["atomic"] = "atomic"
    address = "memory://out"
    version = 1

    def __init__(self, known: Progress | None = None) -> None:
        self.progress = known
        self.rows: list[int] = []
        self.seen: dict[str, SourceBounds] = {}
        self.on_write: Callable[[], None] = lambda: None

    def start(
        self, bounds: Callable[[Iterable[str]], Mapping[str, SourceBounds]], known: Progress | None = None
    ) -> Start:
        if self.progress is None:
            return Begin("out")
        self.seen = dict(bounds([*self.progress.ends, "unknown"]))
        return Resume(self.progress)

    def write(self, rows: Any, batch: Batch, decision: Write | WriteFrom | Drop, **_: Any) -> Progress:
        self.on_write()
        for piece in rows:
            self.rows += [int(row[1]) for row in piece]
        known = self.progress or progress(batch.starts, batch.starts, stateful=batch.is_stateful, total=0)
        self.progress = advance_sources(known, batch, decision)
        return self.progress

    def forget_fence(self) -> None:
        pass

    def close(self) -> None:
        pass


class SharedProgress(Kept):
    """A target that decides how to start as the others do."""

    def start(
        self, bounds: Callable[[Iterable[str]], Mapping[str, SourceBounds]], known: Progress | None = None
    ) -> Start:
        lookup = {} if self.progress is None else bounds(self.progress.ends)
        return decide_start(StartupState("K", 1, "out", "t1", False, self.progress, lookup))


def piece(*numbers: int) -> list[list[OutRow]]:
    return [[(None, b"%d" % number, 1, None, None) for number in numbers]]


def held(home: Home) -> int:
    (hold,) = Bindings(home).holds()
    assert (hold.kind, hold.holder) == ("sink", "sink/K")
    return hold.ts


@pytest.mark.parametrize("stateful", [False, True])
def test_the_hold_follows_what_was_written(home: Home, stateful: bool) -> None:
    """A query with state may have to end a batch where the last one began, and keeps that too."""
    bind(home)
    places, target = chain(home), Kept()
    origin = Bindings(home).source("S").origin
    sink = Sink(home, target)
    sink.start()
    before: list[int] = []
    target.on_write = lambda: before.append(held(home))
    for number in range(1, 5):
        given = Batch.of("q1", {"S": (places[number - 1], places[number])}, is_stateful=stateful)
        outcome = sink.write(given, lambda _: piece(1))
        assert outcome.decision == Write()
        needed = places[number - 1].ts if stateful and number > 1 else places[number].ts
        assert held(home) == max((needed or 0) - 1, origin)
    assert before[0] == origin, "it holds before it writes"
    assert before == sorted(before)
    assert Sinks(home).get("K").progress == target.progress
    assert target.rows == [1] * 4


def test_what_a_sink_needs_is_not_compacted(home: Home) -> None:
    bind(home)
    places, bindings = chain(home), Bindings(home)
    sink = Sink(home, Kept())
    sink.start()
    bindings.alter("S", compaction_window="0 seconds")
    sink.write(Batch.of("q1", {"S": (places[0], places[3])}, is_stateful=False), lambda _: [])
    assert bindings.compact("S").since == (places[3].ts or 0) - 1
    assert Kept(sink.progress).progress == sink.progress
    target = Kept(sink.progress)
    Sink(home, target).start()
    expected = {"S": SourceBounds.of(bindings.source("S"), is_held=True)}
    assert target.seen == expected, "one without bindings is left out"
    Sinks(home).drop("K")
    assert bindings.holds() == ()
    assert bindings.compact("S").since == bindings.durable("S") - 1


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
@pytest.mark.parametrize("rows", [10, 30, 45], ids=["a timestamp", "the first timestamps", "part of them"])
def test_a_sink_that_began_on_a_compacted_source_starts_again(home: Home, stateful: bool, rows: int) -> None:
    """Also while it is still in the first timestamp, which was read in several batches."""
    bind(home)
    bindings = Bindings(home)
    bindings.alter("S", compaction_window="0 seconds")
    bindings.compact("S")
    history = bindings.history("S")
    place, written = SourceOffset("q", None, {}), None
    while (end := next_offset(history, place, BatchLimits(rows=rows))) != place:
        sink = Sink(home, SharedProgress(written))
        sink.start()
        sink.write(Batch.of("q1", {"S": (place, end)}, is_stateful=stateful), lambda _: [])
        place, written = end, sink.progress
        bindings.compact("S")
    bindings.release("S", "sink/K")
    bindings.compact("S")
    with pytest.raises(SinkBindingsMissing):
        Sink(home, SharedProgress(written)).start()


def test_a_source_that_is_read_twice_is_held_for_the_slower_reader(home: Home) -> None:
    bind(home)
    places, key = chain(home), position_key("S", 2)
    sink = Sink(home, Kept())
    sink.start()
    given = Batch.of("q1", {"S": (places[0], places[3]), key: (places[0], places[2])}, is_stateful=False)
    sink.write(given, lambda _: [])
    assert held(home) == (places[2].ts or 0) - 1
    target = Kept(sink.progress)
    Sink(home, target).start()
    assert set(target.seen) == {"S", key}


def test_a_start_repairs_a_hold_that_was_not_moved(home: Home) -> None:
    """Scenario 22."""
    bind(home)
    places, target = chain(home), Kept()
    sink = Sink(home, target, failpoint=lambda place: None)
    sink.start()
    sink.write(Batch.of("q1", {"S": (places[0], places[1])}, is_stateful=False), lambda _: [])
    # As if the process had ended after the commit.
    target.write([], Batch.of("q1", {"S": (places[1], places[2])}, is_stateful=False), Write())
    assert held(home) < (places[2].ts or 0) - 1
    Sink(home, target).start()
    assert held(home) == (places[2].ts or 0) - 1
    Bindings(home).release("S", "sink/K")
    Sink(home, target).start()
    assert held(home) == (places[2].ts or 0) - 1


def test_rows_are_not_asked_for_if_they_were_written_or_may_not_be(home: Home) -> None:
    bind(home)
    places, target = chain(home), Kept()
    sink = Sink(home, target)
    sink.start()
    first = Batch.of("q1", {"S": (places[0], places[1])}, is_stateful=True)
    second = Batch.of("q1", {"S": (places[1], places[2])}, is_stateful=True)
    sink.write(first, lambda _: piece(1))
    sink.write(second, lambda _: piece(2))

    def never(_: object) -> Any:
        raise AssertionError("nobody needs them")

    assert sink.write(second, never).decision == Drop()
    assert sink.write(Batch("q2", second.starts, second.ends, True), never).decision == Drop(adopt=True)
    assert sink.progress is not None
    assert sink.progress.query_id == "q2"
    with pytest.raises(SinkBatchMisaligned):
        sink.write(Batch.of("q2", {"S": (places[0], places[3])}, is_stateful=True), never)
    with pytest.raises(SinkGap):
        sink.write(Batch.of("q2", {"S": (places[3], places[4])}, is_stateful=True), never)
    assert [stop.position["S"] for stop in sink.batch_stops(None, is_stateful=True)] == [places[1], places[2]]
    assert target.rows == [1, 2]


# The list.


def test_a_name_belongs_to_one_target_and_one_mode(home: Home) -> None:
    sinks = Sinks(home)
    made = sinks.register("out", target="kafka://a/t", mode="atomic", version=2)
    assert sinks.register("out", target="kafka://a/t", mode="atomic", version=3).version == 3
    assert sinks.all() == (sinks.get("out"),)
    assert sinks.get("out").created_at == made.created_at
    for target, mode in (("kafka://a/u", "atomic"), ("kafka://a/t", "parallel")):
        with pytest.raises(SinkExists):
            sinks.register("out", target=target, mode=mode, version=3)  # type: ignore[arg-type]
    with pytest.raises(SinkVersionOld, match="ours=2 theirs=3"):
        sinks.register("out", target="kafka://a/t", mode="atomic", version=2)
    with pytest.raises(InvalidValue):
        sinks.register("a/b", target="kafka://a/t", mode="atomic", version=1)


def test_a_name_that_no_sink_has_is_refused_with_a_guess(home: Home) -> None:
    sinks = Sinks(home)
    sinks.register("orders", target="kafka://a/t", mode="atomic", version=1)
    for ask in (sinks.get, sinks.explain, sinks.drop):
        with pytest.raises(UnknownSink, match="orders"):
            ask("ordres")
    sinks.drop("orders")
    assert sinks.all() == ()


def test_a_copy_of_progress_does_not_go_back(home: Home) -> None:
    bind(home)
    places, sinks = chain(home), Sinks(home)
    sinks.register("K", target="kafka://a/out", mode="atomic", version=1)
    newer = progress({"S": places[1]}, {"S": places[2]}, stateful=False, total=20)
    older = progress({"S": places[0]}, {"S": places[1]}, stateful=False, total=10)
    sinks.record("K", newer)
    sinks.record("K", older)
    assert sinks.get("K").progress == newer


def test_a_sink_explains_itself(home: Home) -> None:
    bind(home)
    places, sinks = chain(home), Sinks(home)
    target = Kept()
    sink = Sink(home, target)
    sink.start()
    sink.write(Batch.of("q1", {"S": (places[0], places[2])}, is_stateful=False), lambda _: [])
    upper, written = Bindings(home).durable("S"), places[2].ts or 0
    assert sinks.explain("K")[0] == "The sink 'K' writes to memory://out (atomic, version 1)."
    assert sinks.explain("K")[-1] == (
        f"Of 'S', of which {as_utc(upper)} is open, it has written up to {as_utc(written)}, "
        f"and holds it at {as_utc(written - 1)}."
    )
