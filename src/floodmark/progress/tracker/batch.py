"""Many reports at once, as columns: checked, split by origin, planned with numpy, applied completely or not at all.

Sequences that are complete within the batch and new to the origin (usually almost all) never become Python objects:
they are found with numpy and added as runs. Only the rows of the others are processed one by one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floodmark._util.ints import INT64_MIN, check_int64
from floodmark.errors import BatchInvalid, ChunkConflict, NumberOutOfRange
from floodmark.progress.columns import Int64Array, as_array, int64_column, watermark_column
from floodmark.progress.tracker.prefix import NO_WATERMARK, Prefix
from floodmark.progress.tracker.sequences import FIRST_ATTEMPT, AttemptRun, OpenSequence, Run, run_index, runs_cover

_SCATTERED: Final = 8
"""If runs are shorter than this on average, single sequences are cheaper."""


BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Reports:
    """Reports in order of arrival. `chunk` counts from zero, whatever the tracker's base."""

    sequence: Int64Array
    chunk: Int64Array
    last: BoolArray
    watermark: Int64Array
    attempt: Int64Array

    def where(self, rows: BoolArray | Int64Array | slice) -> "Reports":
        """Return some of the rows."""
        return Reports(self.sequence[rows], self.chunk[rows], self.last[rows], self.watermark[rows], self.attempt[rows])

    def split(self, codes: Int64Array, names: Sequence[str | int]) -> Iterator[tuple[str | int, "Reports"]]:
        """Yield the rows of each origin; `codes` has the index in `names` of each row's origin."""
        if codes.shape != self.sequence.shape:
            raise BatchInvalid(
                f"The column 'origin' has shape {codes.shape}, the column 'sequence' {self.sequence.shape}.",
                rule="All columns of a batch are one-dimensional and have the same length.",
                remedy="Pass one origin per row, or one origin for all rows.",
                column="origin",
                shape=codes.shape,
            )
        # Numpy sorts narrow integers by counting, which is several times faster.
        order = np.argsort(codes.astype(np.min_scalar_type(len(names))), kind="stable")
        codes, ordered = codes[order], self.where(order)
        bounds = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(codes)]
        for start, end in pairwise(bounds):
            if end > start:
                yield names[codes[start]], ordered.where(slice(start, end))


def check_reports(
    sequence: ArrayLike,
    watermark: ArrayLike,
    chunk: ArrayLike | None,
    last: ArrayLike | None,
    attempt: ArrayLike | None,
    *,
    first: int,
    chunk_base: int,
) -> Reports:
    """Return the checked columns. Without `chunk` and `last`, each row is a whole sequence.

    >>> check_reports([1, 2], [10, 20], None, None, None, first=1, chunk_base=0).last
    array([ True,  True])
    """
    sequences = _column_from(first, sequence, "sequence", None)
    rows = len(sequences)
    zeros = np.zeros(rows, dtype=np.int64)
    return Reports(
        sequence=sequences,
        chunk=zeros if chunk is None else _column_from(chunk_base, chunk, "chunk", rows) - chunk_base,
        last=np.ones(rows, dtype=np.bool_) if last is None else _bool_column(last, rows),
        watermark=watermark_column(watermark, "watermark", rows),
        attempt=zeros if attempt is None else int64_column(attempt, "attempt", rows),
    )


def check_from(first: int, value: object, what: str) -> int:
    """Return a number that is not below `first`, or raise an error.

    >>> check_from(1, 0, "sequence")
    Traceback (most recent call last):
    floodmark.errors.NumberOutOfRange: The sequence is 0. The first sequence is 1. ... [number-out-of-range]
    """
    number = check_int64(value, what)
    if number < first:
        raise NumberOutOfRange(
            f"The {what} is {number}.",
            rule=f"The first {what} is {first}.",
            remedy=f"Count from {first}, or create the tracker with another first or chunk_base.",
            number=number,
            first=first,
        )
    return number


def _column_from(first: int, values: ArrayLike, what: str, length: int | None) -> Int64Array:
    column = int64_column(values, what, length)
    if len(column):
        check_from(first, int(column.min()), what)
    return column


def _bool_column(values: ArrayLike, length: int) -> BoolArray:
    flags = as_array(values, "last")
    if flags.dtype != np.bool_ or flags.shape != (length,):
        raise BatchInvalid(
            f"The column 'last' has type {flags.dtype} and shape {flags.shape}.",
            rule=f"The column must hold {length} booleans and no nulls.",
            remedy="Pass True for the last chunk of a sequence, else False.",
            column="last",
            shape=flags.shape,
        )
    return flags


@dataclass(slots=True)
class BatchPlan:
    """What a batch would change in one prefix.

    Complete sequences are either in `runs` or, where they are scattered, in `singles`. `folded` are sequences that
    waited singly before and are now part of those. `retried` are the ones that another attempt than the first has
    completed. `repeats` are other reports of complete sequences, as (sequence, watermark, attempt). `has_news` is false
    if the batch only repeats earlier reports.
    """

    runs: list[Run] = field(default_factory=list)
    singles: dict[int, int] = field(default_factory=dict)
    folded: list[int] = field(default_factory=list)
    drafts: dict[int, OpenSequence] = field(default_factory=dict)
    retried: list[AttemptRun] = field(default_factory=list)
    repeats: list[tuple[int, int, int]] = field(default_factory=list)
    passed_top: int = NO_WATERMARK
    duplicates: int = 0
    stale: int = 0
    has_news: bool = False


class BatchChange(NamedTuple):
    """What a batch has changed in one prefix: whether it grew, and how many rows were duplicates or stale."""

    has_grown: bool
    duplicates: int
    stale: int


def plan_batch(prefix: Prefix, reports: Reports, chunk_base: int) -> BatchPlan:
    """Return what `reports` would change, without changing anything; raise an error on a contradiction."""
    plan = BatchPlan()
    passed = reports.sequence < prefix.next
    if passed.any():
        _plan_passed(prefix, plan, reports.where(passed))
        reports = reports.where(~passed)
    if not len(reports.sequence):
        return plan
    slot, width, sequence_of = _sequence_slots(reports.sequence)
    clean = _clean_slots(reports, slot, width)
    _exclude_reported(prefix, clean, sequence_of)
    waiting = _waiting_slots(prefix, plan, width, sequence_of)
    clean[waiting] = False
    plan.has_news = bool(clean.any())
    if plan.has_news and (attempt := int(reports.attempt[0])) != FIRST_ATTEMPT:
        sequence = _sequences_of(np.flatnonzero(clean), sequence_of)
        plan.retried = [AttemptRun(start, end, attempt) for start, end in _ranges(sequence)]
    slow = ~clean[slot]
    top = _tops(reports, slot, width)
    # Sequences that wait singly in this range are treated as part of the batch.
    clean[waiting] = True
    top[waiting] = [prefix.waiting[sequence] for sequence in plan.folded]
    _plan_complete(plan, clean, top, sequence_of)
    if slow.any():
        _plan_rows(prefix, plan, reports.where(slow), chunk_base)
        plan.has_news |= bool(plan.drafts)
    _refuse_if_full(prefix, plan)
    return plan


def apply_plan(prefix: Prefix, plan: BatchPlan) -> BatchChange:
    """Change `prefix` as planned."""
    before = prefix.next, prefix.duplicates, prefix.stale
    prefix.duplicates += plan.duplicates
    prefix.stale += plan.stale
    if plan.passed_top > prefix.watermark:
        prefix.watermark = plan.passed_top
    for sequence in plan.folded:
        del prefix.waiting[sequence]
    for run in plan.retried:
        prefix.attempts.assign(*run)
    runs = list(plan.runs)
    for sequence, draft in plan.drafts.items():
        partial = prefix.open.pop(sequence, None)
        prefix.chunks_ahead -= len(partial.ahead) if partial is not None else 0
        if draft.is_complete():
            runs.append(Run(sequence, sequence, draft.watermark, 0))
            if draft.attempt != FIRST_ATTEMPT:
                prefix.attempts.assign(sequence, sequence, draft.attempt)
        else:
            prefix.open[sequence] = draft
            prefix.chunks_ahead += len(draft.ahead)
    if runs or plan.singles:
        prefix.complete_many(runs, plan.singles)
    for sequence, watermark, attempt in plan.repeats:
        prefix.repeat(sequence, watermark, attempt)
    return BatchChange(prefix.next > before[0], prefix.duplicates - before[1], prefix.stale - before[2])


def _plan_passed(prefix: Prefix, plan: BatchPlan, reports: Reports) -> None:
    """Plan reports of sequences that the prefix has passed."""
    if prefix.attempts.runs or (reports.attempt != FIRST_ATTEMPT).any():
        columns = reports.sequence, reports.watermark, reports.attempt
        plan.repeats += zip(*(column.tolist() for column in columns), strict=True)
    else:
        plan.duplicates = len(reports.sequence)
        plan.passed_top = int(reports.watermark.max())


def _refuse_if_full(prefix: Prefix, plan: BatchPlan) -> None:
    incomplete = [draft for draft in plan.drafts.values() if not draft.is_complete()]
    most_chunks = len(prefix.open) + prefix.chunks_ahead + sum(1 + len(draft.ahead) for draft in incomplete)
    most_runs = len(prefix.runs) + len(prefix.waiting) + len(plan.runs) + len(plan.singles) + len(plan.drafts)
    if max(most_chunks, most_runs) <= prefix.max_pending:
        return
    trial = prefix.copy()
    apply_plan(trial, plan)
    trial.refuse_if_overfull()


def _sequence_slots(sequence: Int64Array) -> tuple[Int64Array, int, Int64Array | int]:
    """Return the slot (a dense number) of each row's sequence, the number of slots, and how to get back.

    The way back is the lowest sequence if slots are offsets from it, else an array with the sequence of each slot.
    """
    lowest = int(sequence.min())
    width = int(sequence.max()) - lowest + 1
    if width <= 4 * len(sequence) + 1024:
        return sequence - lowest, width, lowest
    distinct, slot = np.unique(sequence, return_inverse=True)
    return slot, len(distinct), distinct


def _clean_slots(reports: Reports, slot: Int64Array, width: int) -> BoolArray:
    """Return which slots are complete within the batch, without duplicate chunks and with a single attempt."""
    if reports.attempt.min() != reports.attempt.max():
        return np.zeros(width, dtype=np.bool_)
    seen = np.bincount(slot, minlength=width)
    if not reports.chunk.any():
        last_seen = np.bincount(slot[reports.last], minlength=width)
        clean: BoolArray = (seen == 1) & (last_seen == 1)
        return clean
    last_chunk = np.full(width, -1, dtype=np.int64)
    last_slots = slot[reports.last]
    last_chunk[last_slots] = reports.chunk[reports.last]
    clean = (seen == last_chunk + 1) & (np.bincount(last_slots, minlength=width) == 1)
    # As many rows as chunks and none beyond the last: complete, unless one chunk is duplicated and another missing.
    beyond = reports.chunk > last_chunk[slot]
    clean[slot[beyond]] = False
    chunk_width = int(last_chunk.max()) + 1
    if width * chunk_width <= 16 * len(slot) + 1024:
        filled = np.zeros(width * chunk_width, dtype=np.bool_)
        inside = clean[slot]
        filled[slot[inside] * chunk_width + reports.chunk[inside]] = True
        clean &= filled.reshape(width, chunk_width).sum(axis=1) == seen
    else:
        order = np.lexsort((reports.chunk, slot))
        same = (np.diff(slot[order]) == 0) & (np.diff(reports.chunk[order]) == 0)
        clean[slot[order][1:][same]] = False
    return clean


def _exclude_reported(prefix: Prefix, clean: BoolArray, sequence_of: Int64Array | int) -> None:
    """Exclude sequences reported before from the fast path, except those that wait singly."""
    if not isinstance(sequence_of, int):
        prefix.pack()
    if not prefix.open and not prefix.runs:
        return
    if isinstance(sequence_of, int):
        end = sequence_of + len(clean)
        for sequence in prefix.open:
            if sequence_of <= sequence < end:
                clean[sequence - sequence_of] = False
        for index in range(run_index(prefix.runs, end - 1), len(prefix.runs)):
            run = prefix.runs[index]
            if run.end < sequence_of:
                break
            clean[max(0, run.start - sequence_of) : run.end + 1 - sequence_of] = False
    else:
        for slot, sequence in enumerate(sequence_of.tolist()):
            if sequence in prefix.open or runs_cover(prefix.runs, sequence):
                clean[slot] = False


def _tops(reports: Reports, slot: Int64Array, width: int) -> Int64Array:
    """Return the highest watermark of each slot."""
    top = np.full(width, INT64_MIN, dtype=np.int64)
    if reports.chunk.any():
        np.maximum.at(top, slot, reports.watermark)
    else:
        top[slot] = reports.watermark
    return top


def _waiting_slots(prefix: Prefix, plan: BatchPlan, width: int, sequence_of: Int64Array | int) -> Int64Array:
    """Return the slots of sequences that wait singly; the plan removes them from there."""
    if not prefix.waiting or not isinstance(sequence_of, int):
        return np.empty(0, dtype=np.int64)
    slots = np.fromiter(prefix.waiting, dtype=np.int64, count=len(prefix.waiting)) - sequence_of
    slots = slots[(slots >= 0) & (slots < width)]
    plan.folded = (slots + sequence_of).tolist()
    return slots


def _plan_complete(plan: BatchPlan, clean: BoolArray, top: Int64Array, sequence_of: Int64Array | int) -> None:
    """Plan the complete slots as runs, or as singles after the first run if they are scattered."""
    slots = np.flatnonzero(clean)
    if not len(slots):
        return
    top = top[slots]
    sequence = _sequences_of(slots, sequence_of)
    breaks = _breaks(sequence)
    if _SCATTERED * len(breaks) > len(sequence) - (lead := int(breaks[0]) if len(breaks) else 0):
        plan.singles = dict(zip(sequence[lead:].tolist(), top[lead:].tolist(), strict=True))
        sequence, top, breaks = sequence[:lead], top[:lead], breaks[:0]
    starts, ends = np.concatenate(([0], breaks)), np.concatenate((breaks, [len(sequence)])) - 1
    falls = np.concatenate(([False], top[1:] < top[:-1])).astype(np.int64)
    falls[starts] = 0
    columns = sequence[starts], sequence[ends], np.maximum.reduceat(top, starts), np.add.reduceat(falls, starts)
    plan.runs = list(map(Run, *(column.tolist() for column in columns)))


def _sequences_of(slots: Int64Array, sequence_of: Int64Array | int) -> Int64Array:
    """Return the sequence of each slot, ascending."""
    sequences: Int64Array = slots + sequence_of if isinstance(sequence_of, int) else sequence_of[slots]
    return sequences


def _breaks(sequence: Int64Array) -> Int64Array:
    """Return where a new run begins, the first one left out."""
    return np.flatnonzero(sequence[1:] - sequence[:-1] != 1) + 1


def _ranges(sequence: Int64Array) -> Iterator[tuple[int, int]]:
    """Yield the runs of at least one ascending sequence, as inclusive ranges."""
    breaks = _breaks(sequence)
    starts, ends = sequence[[0, *breaks]], sequence[[*(breaks - 1), -1]]
    return zip(starts.tolist(), ends.tolist(), strict=True)


def _plan_rows(prefix: Prefix, plan: BatchPlan, reports: Reports, chunk_base: int) -> None:
    """Process the remaining rows one by one, on copies."""
    columns = (reports.sequence, reports.chunk, reports.last, reports.watermark, reports.attempt)
    for sequence, offset, is_last, watermark, attempt in zip(*(c.tolist() for c in columns), strict=True):
        chunk = offset + chunk_base
        draft = plan.drafts.get(sequence)
        if draft is None and (partial := prefix.open.get(sequence)) is not None:
            draft = plan.drafts[sequence] = partial.copy()
        if draft is None:
            if prefix.is_complete(sequence):
                plan.repeats.append((sequence, watermark, attempt))
            else:
                plan.drafts[sequence] = OpenSequence(attempt, chunk_base, chunk, is_last, watermark)
        elif attempt < draft.attempt:
            plan.stale += 1
        elif draft.is_complete():
            plan.duplicates += 1
            draft.attempt = attempt
            draft.watermark = max(draft.watermark, watermark)
        elif attempt > draft.attempt:
            plan.drafts[sequence] = OpenSequence(attempt, chunk_base, chunk, is_last, watermark)
        else:
            try:
                is_new = draft.report(chunk, is_last, watermark)
            except ChunkConflict as conflict:
                prefix.conflicts += 1
                conflict.fields["sequence"] = sequence
                raise
            plan.duplicates += not is_new
