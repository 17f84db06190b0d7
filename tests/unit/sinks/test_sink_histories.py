"""Whatever the batches and restarts: each row and each window is written once. Simpler gates do not do that."""

from collections import Counter
from collections.abc import Callable, Hashable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.bindings.offsets import BatchStop, QueryPosition
from floodmark.sinks.gate import Batch, is_at_most
from support.examples import examples
from support.sinks.sink_histories import Floodmarks, Gate, Query, Row

SEEDS = 300

Output = list[tuple[Hashable, Row | None]]


@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("stateful", [False, True], ids=["rows", "windows"])
@settings(max_examples=examples(400))
@given(seed=st.integers(0, 2**32))
def test_every_row_and_every_window_is_written_once(stateful: bool, sources: int, seed: int) -> None:
    query = Query(Random(seed), Floodmarks(is_stateful=stateful), is_stateful=stateful, sources=sources)
    query.run()
    assert Counter(query.written) == query.expected


@pytest.mark.parametrize("stateful", [False, True], ids=["rows", "windows"])
def test_what_is_kept_or_deleted_is_never_refused_and_an_older_checkpoint_seldom(stateful: bool) -> None:
    refused = 0
    for seed in range(SEEDS):
        query = Query(Random(seed), Floodmarks(is_stateful=stateful), is_stateful=stateful, sources=1)
        query.old = _Nothing()
        query.run()
        assert query.refused == 0
        query = Query(Random(seed), Floodmarks(is_stateful=stateful), is_stateful=stateful, sources=1)
        query.run()
        refused += query.refused
    assert refused == 0 if not stateful else 0 < refused < SEEDS // 3


class _Nothing(list):  # type: ignore[type-arg]
    """No older checkpoint is kept."""

    def append(self, _: object) -> None:
        pass


class ByTimestamp:
    """A batch is written if it ends behind the last timestamp that was written."""

    def __init__(self) -> None:
        self.written = -1

    def batch_stops(self, starts: QueryPosition | None) -> tuple[BatchStop, ...]:
        return ()

    def write(self, batch: Batch, number: int, output: Output) -> list[Hashable]:
        ts = max(offset.ts or 0 for offset in batch.ends.values())
        if ts <= self.written:
            return []
        self.written = ts
        return [value for value, _ in output]


class ByNumber(ByTimestamp):
    """A batch is written if its number was not."""

    def write(self, batch: Batch, number: int, output: Output) -> list[Hashable]:
        if number <= self.written:
            return []
        self.written = number
        return [value for value, _ in output]


class WithoutQ:
    """Batches end at R, and what ends there or before is dropped; nobody cares for Q."""

    def __init__(self) -> None:
        self.written: QueryPosition | None = None

    def batch_stops(self, starts: QueryPosition | None) -> tuple[BatchStop, ...]:
        if self.written is None or (starts is not None and is_at_most(self.written, starts)):
            return ()
        return (BatchStop(self.written, in_one=False),)

    def write(self, batch: Batch, number: int, output: Output) -> list[Hashable]:
        if self.written is not None and is_at_most(batch.ends, self.written):
            return []
        self.written = batch.ends
        return [value for value, _ in output]


def failures(make: Callable[[], Gate], *, stateful: bool) -> int:
    failed = 0
    for seed in range(SEEDS):
        query = Query(Random(seed), make(), is_stateful=stateful, sources=1)
        query.run()
        failed += Counter(query.written) != query.expected
    return failed


@pytest.mark.parametrize("stateful", [False, True], ids=["rows", "windows"])
@pytest.mark.parametrize("gate", [ByTimestamp, ByNumber])
def test_a_gate_of_timestamps_or_batch_numbers_alone_loses_or_repeats(gate: type[ByTimestamp], stateful: bool) -> None:
    assert failures(gate, stateful=stateful) > SEEDS // 15


def test_a_gate_that_ends_batches_at_r_alone_loses_or_repeats_windows() -> None:
    assert failures(WithoutQ, stateful=True) > 10
    assert failures(lambda: Floodmarks(is_stateful=True), stateful=True) == 0
