"""The record after a batch, whatever the target is. Without clock and I/O."""

from collections.abc import Mapping
from dataclasses import replace

from floodmark.sinks._gate import Batch, Drop, Write, WriteFrom, next_progress
from floodmark.sinks._progress import Progress, SinkMark


def first_progress(sink: str, place: str, place_id: str, version: int, batch: Batch) -> Progress:
    """Return the record of a sink that has written nothing, before its first batch."""
    return Progress(sink, place, place_id, version, batch.query_id, batch.starts, batch.starts, batch.is_stateful)


def progress_after(
    known: Progress, batch: Batch, decision: Write | WriteFrom | Drop, *, rows: int, watermarks: Mapping[str, int]
) -> Progress:
    """Return what is written after a batch of so many rows. What was told of time is not taken back.

    >>> batch = Batch("q", {}, {}, is_stateful=False)
    >>> first = progress_after(first_progress("out", "s", "1", 1, batch), batch, Write(), rows=5, watermarks={"at": 7})
    >>> second = progress_after(first, batch, Write(), rows=2, watermarks={"at": 6})
    >>> second.rows, second.total, second.marks
    (2, 7, {'at': SinkMark(time=7, seq=1)})
    """
    marks = dict(known.marks)
    for key, time in sorted(watermarks.items()):
        if key not in marks or time > marks[key].time:
            marks[key] = SinkMark(time, marks[key].seq + 1 if key in marks else 1)
    return replace(
        next_progress(known, batch, decision),
        marks=marks,
        rows=known.rows if isinstance(decision, Drop) else rows,
        total=known.total + rows,
    )
