"""Records that close batches: which of them count, and that no order of events counts a row twice or loses one."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.bindings import SourceOffset
from floodmark.errors import FloodmarkError, SinkFenced, SinkProgressInvalid, StateError
from floodmark.sinks import Batch, Drop, Write
from floodmark.sinks.gate import decide_batch
from floodmark.sinks.manifest.target import Manifest, ManifestPart, ManifestTarget, effective_manifests
from floodmark.sinks.startup import SourceBounds

PART = ManifestPart("a1/part-0", 7)


def tokens(*records: Manifest) -> dict[str, str]:
    return {sink: "".join(one.token for one in chain) for sink, chain in effective_manifests(records).items()}


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ("1a 2b 3c", "abc"),
        ("1a 1b 2c", "ac"),
        ("1a 2b 2c 3d 3e", "abd"),
        ("2a", ""),
        ("1a 3b 2c 3d", "acd"),
        ("1a 2b 1c 2d 3e", "abe"),
    ],
)
def test_the_first_record_of_the_next_number_counts(numbers: str, wanted: str) -> None:
    assert tokens(*(Manifest("K", int(one[0]), one[1]) for one in numbers.split())) == {"K": wanted}


def test_sinks_are_counted_apart() -> None:
    assert tokens(Manifest("K", 1, "a"), Manifest("L", 1, "b"), Manifest("K", 2, "c")) == {"K": "ac", "L": "b"}


def test_who_takes_over_says_the_same_of_rows_and_closes_none() -> None:
    closing = Manifest("K", 4, "a", "a1", (PART,))
    fence = closing.fence("b")
    assert (fence.number, fence.token, fence.attempt, fence.rows, closing.rows) == (5, "b", "a1", 0, 7)


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b"nonsense", Manifest("K", 1, "a").save().replace(b'm":1', b'm":9')]
)
def test_a_record_that_nobody_can_read_is_an_error(value: bytes) -> None:
    with pytest.raises(SinkProgressInvalid):
        Manifest.load(value)


@dataclass
class World:
    """Records and rows that several processes write, as a topic keeps them: whatever is sent stays."""

    random: Random
    records: list[Manifest] = field(default_factory=list)
    rows: list[tuple[str, int]] = field(default_factory=list)
    depth: int = 0

    def closed(self) -> Counter[int]:
        named = {
            part.name for chain in effective_manifests(self.records).values() for one in chain for part in one.parts
        }
        return Counter(row for name, row in self.rows if name in named)


class SharedLog:
    sink, noun, location, address = "K", "table", "rows", "memory://rows"

    def __init__(self, world: World) -> None:
        self._world = world

    def open(self) -> str:
        return "t1"

    def create(self) -> None:
        raise AssertionError

    def newest(self) -> Manifest | None:
        return effective_manifests(self._world.records).get("K", [None])[-1]

    def has_rows(self) -> bool:
        return bool(self._world.rows)

    def add(self, record: Manifest) -> bool:
        if self._world.random.random() < 0.2:
            meet(self._world)
        self._world.records.append(record)
        return record in effective_manifests(self._world.records)["K"]

    def clean(self, record: Manifest) -> None: ...

    def close(self) -> None: ...


class Killed(Exception):
    """The process ends here."""


def at(end: int) -> SourceOffset:
    return SourceOffset("q", end or None, {0: end} if end else {})


def meet(world: World) -> None:
    """Let another process start, and perhaps write, in the middle of what one does."""
    if world.depth < 4:
        world.depth += 1
        try:
            live(world, world.random.randrange(3))
        finally:
            world.depth -= 1


def live(world: World, batches: int) -> None:
    """Be a process that starts and writes some batches, from wherever its checkpoint is, until it is killed."""

    def fail(place: str) -> None:
        if world.random.random() < 0.1:
            raise Killed(place)

    target = ManifestTarget(SharedLog(world), failpoint=fail)
    try:
        target.start(lambda sources: {source: SourceBounds(1, 1, 10**9) for source in sources})
        done = 0 if target.progress is None else target.progress.ends["S"].cut.get(0, 0)
        begun = max(0, done - world.random.randrange(3))
        for _ in range(batches):
            end = begun + world.random.randrange(1, 4) if begun >= done else min(done, begun + 1)
            batch = Batch.of("q1", {"S": (at(begun), at(end))}, is_stateful=False)
            decision = decide_batch(target.progress, batch)
            begun, numbers = end, range(begun, end)
            if isinstance(decision, Drop):
                continue
            assert isinstance(decision, Write)

            def send(attempt: str, numbers: range = numbers) -> list[ManifestPart]:
                parts = []
                for row in numbers:
                    fail("rows")
                    if world.random.random() < 0.2:
                        meet(world)
                    world.rows.append((f"{attempt}.{row}", row))
                    parts.append(ManifestPart(f"{attempt}.{row}", 1))
                return parts

            target.write(send, batch, decision)
    except (Killed, SinkFenced):
        return


@given(seed=st.integers(0, 2**32))
def test_whatever_processes_do_to_one_another_each_row_counts_once(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(12):
        live(world, 3)
        newest = SharedLog(world).newest()
        progress = None if newest is None else newest.progress
        written = 0 if progress is None else progress.ends["S"].cut[0]
        assert world.closed() == Counter(range(written))
        assert progress is None or progress.total == written


def bounds(sources: Iterable[str]) -> dict[str, SourceBounds]:
    return {source: SourceBounds(1, 1, 9) for source in sources}


def test_a_target_that_has_failed_or_was_fenced_is_started_again_or_never() -> None:
    world = World(Random(0), depth=9)
    batch = Batch.of("q1", {"S": (at(0), at(2))}, is_stateful=False)
    first, second = ManifestTarget(SharedLog(world)), ManifestTarget(SharedLog(world))
    with pytest.raises(StateError, match="not started"):
        first.write(lambda _: [], batch, Write())
    first.start(bounds)
    with pytest.raises(ZeroDivisionError):
        first.write(lambda _: [ManifestPart("a", 1 // 0)], batch, Write())
    with pytest.raises(StateError, match="not started"):
        first.write(lambda _: [], batch, Write())
    first.start(bounds)
    second.start(bounds)
    with pytest.raises(SinkFenced):
        first.write(lambda _: [], batch, Write())
    with pytest.raises(SinkFenced):
        first.start(bounds)
    second.write(lambda _: [PART], batch, Write())
    assert second.progress is not None
    assert (second.progress.total, second.progress.position) == (7, {0: 4})


def test_a_failure_of_whoever_was_fenced_is_told_as_that() -> None:
    world = World(Random(0), depth=9)
    first, second = ManifestTarget(SharedLog(world)), ManifestTarget(SharedLog(world))
    first.start(bounds)

    def taken(_: str) -> list[ManifestPart]:
        second.start(bounds)
        raise OSError("its files are gone")

    with pytest.raises(FloodmarkError) as told:
        first.write(taken, Batch.of("q1", {"S": (at(0), at(2))}, is_stateful=False), Write())
    assert told.value.code == "sink-fenced"


def test_what_is_known_elsewhere_of_a_sink_is_never_more_than_its_records_say() -> None:
    world = World(Random(0), depth=9)
    target = ManifestTarget(SharedLog(world))
    target.start(bounds)
    progress = target.write(lambda _: [PART], Batch.of("q1", {"S": (at(0), at(2))}, is_stateful=False), Write())
    ManifestTarget(SharedLog(world)).start(bounds, progress)
    with pytest.raises(SinkProgressInvalid):
        ManifestTarget(SharedLog(world)).start(bounds, replace(progress, total=8))
    with pytest.raises(SinkProgressInvalid):
        ManifestTarget(SharedLog(World(Random(0)))).start(bounds, progress)
    with pytest.raises(StateError, match="was deleted and created again"):
        ManifestTarget(SharedLog(World(Random(0)))).start(bounds, replace(progress, topic_id="t0"))
