"""What the rows of a batch must be told from: what was written, and what readers were told of time."""

from floodmark.bindings import Bindings
from floodmark.bindings.offsets import BatchStop
from floodmark.sinks import Batch, Progress, Write, WriteFrom
from floodmark.sinks.gate import SplitAt, is_same, misaligned_error
from floodmark.spark._sink_rows import RowForm


def newest_ts(batch: Batch) -> int:
    """Return the timestamp of rows that have none of their own: the last one of the batch."""
    return max((offset.ts or 0 for offset in batch.ends.values()), default=0)


def known_times(form: RowForm, batch: Batch, progress: Progress | None) -> dict[str, int]:
    """Return what readers were told of time by key; a row without state may be late, and is so for them too."""
    if progress is None or not batch.is_stateful or not is_same(batch.starts, progress.ends):
        # What was written before is not written again, however early it is.
        return {}
    return {key: progress.marks[key].time for key, _ in form.times if key in progress.marks}


def rows_after(decision: Write | WriteFrom, batch: Batch, form: RowForm, bindings: Bindings) -> int | None:
    """Return the last timestamp whose rows were written; None if all are to be written."""
    if isinstance(decision, Write):
        return None
    if len(batch.starts) == 1 and form.has_ts:
        ((source, after),) = decision.after.items()
        if after.is_at_end_of_ts(bindings.history(source)):
            return after.ts
    raise misaligned_error(SplitAt((BatchStop(decision.after, in_one=False),)), batch)
