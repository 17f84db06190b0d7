"""A prefix as plain values, and two prefixes of one origin as one."""

from typing import Any

from floodmark._util.ints import check_int64
from floodmark.progress._prefix import NO_WATERMARK, Prefix
from floodmark.progress._runs import Run, covers
from floodmark.progress._sequence import OpenSequence

_COUNTERS = ("duplicates", "stale", "conflicts", "falls")


def save_prefix(prefix: Prefix) -> dict[str, Any]:
    """Return the prefix as JSON values; its size depends on the gaps, not on how far it has come."""
    prefix.pack()
    return {
        "next": prefix.next,
        "watermark": prefix.watermark if prefix.watermark != NO_WATERMARK else None,
        "runs": [list(run) for run in prefix.runs],
        "open": [
            [sequence, known.attempt, known.next, sorted(known.ahead), known.last, known.watermark]
            for sequence, known in sorted(prefix.open.items())
        ],
        **{counter: getattr(prefix, counter) for counter in _COUNTERS},
    }


def load_prefix(state: dict[str, Any], max_pending: int) -> Prefix:
    """Return the prefix that was saved."""
    watermark = state["watermark"]
    prefix = Prefix(
        check_int64(state["next"], "next sequence"),
        NO_WATERMARK if watermark is None else check_int64(watermark, "watermark"),
        max_pending,
    )
    prefix.runs = [Run(*(check_int64(value, "run") for value in run)) for run in state["runs"]]
    for sequence, attempt, following, ahead, last, top in state["open"]:
        prefix.open[sequence] = OpenSequence.load(attempt, following, ahead, last, top)
        prefix.chunks_ahead += len(ahead)
    for counter in _COUNTERS:
        setattr(prefix, counter, check_int64(state[counter], counter))
    prefix.pack()
    return prefix


def merge_prefix(ours: Prefix, theirs: Prefix, chunk_base: int) -> Prefix:
    """Return a prefix that knows what both know. The counters stay ours. Raises on a contradiction.

    Order, grouping and repetition of merges make no difference: positions by union, watermarks by maximum.
    """
    ours.pack()
    theirs.pack()
    merged = ours.copy()
    merged.next = max(ours.next, theirs.next)
    merged.watermark = max(ours.watermark, theirs.watermark)
    merged.runs = _union([*ours.runs, *theirs.runs])
    while merged.runs and merged.runs[-1].start <= merged.next:
        run = merged.runs.pop()
        merged.next = max(merged.next, run.end + 1)
        merged.watermark = max(merged.watermark, run.top)
    for sequence, known in theirs.open.items():
        mine = merged.open.get(sequence)
        merged.open[sequence] = known.copy() if mine is None else mine.merged_with(known, chunk_base)
    falls, duplicates = merged.falls, merged.duplicates
    for sequence, known in sorted(merged.open.items()):
        if sequence < merged.next or covers(merged.runs, sequence):
            merged.repeat(sequence, known.watermark)
            del merged.open[sequence]
        elif known.is_complete():
            del merged.open[sequence]
            merged.complete(sequence, known.watermark)
    merged.pack()
    merged.falls, merged.duplicates = falls, duplicates
    merged.chunks_ahead = sum(len(known.ahead) for known in merged.open.values())
    merged.refuse_if_overfull()
    return merged


def _union(runs: list[Run]) -> list[Run]:
    """Return runs that may overlap as a descending list of separate ones."""
    ascending: list[Run] = []
    for run in sorted(runs):
        if ascending and run.start <= ascending[-1].end + 1:
            before = ascending[-1]
            falls = max(before.falls, run.falls)
            ascending[-1] = Run(before.start, max(before.end, run.end), max(before.top, run.top), falls)
        else:
            ascending.append(run)
    return ascending[::-1]
