"""The part each writer has in the next watermark: it counts, is waited for, or neither, and why."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from floodmark.streams._entries import MarkEntry
from floodmark.streams._rules import WatermarkRules
from floodmark.streams._writers import WriterRecord, WriterState


@dataclass(slots=True)
class Parts:
    """All known writers of a stream and key, sorted by what they mean for the next watermark.

    - `counting`: ahead of the last watermark. A closed one counts too, until the watermark has come to its time.
    - `holding`: alive and not ahead: not above the last watermark, or without a time. The next one waits for them.
    - `aside`: alive, but late: fell behind while the others went on. Nobody waits for them until they are ahead.
    - `idle`: said so. `lost`: timed out, now or before. `leaving`: closed and not ahead.

    Nobody is held up for longer than one timeout while a living writer is ahead: `patience_ends` then, and whoever
    still holds is set aside, though it may be speaking.
    """

    counting: list[WriterRecord] = field(default_factory=list)
    holding: list[WriterRecord] = field(default_factory=list)
    aside: list[WriterRecord] = field(default_factory=list)
    idle: list[WriterRecord] = field(default_factory=list)
    leaving: list[WriterRecord] = field(default_factory=list)
    lost: list[WriterRecord] = field(default_factory=list)
    patience_ends: int | None = None

    def everybody(self) -> list[WriterRecord]:
        """Return all writers."""
        return [*self.counting, *self.holding, *self.aside, *self.idle, *self.leaving, *self.lost]


def take_parts(records: Iterable[WriterRecord], last: MarkEntry | None, rules: WatermarkRules, now: int) -> Parts:
    """Give each writer its part at the time `now`.

    >>> last = MarkEntry(1, EntryKind.WATERMARK, 100, 100, ("w1",), {0: 10}, at=0)
    >>> records = [WriterRecord.open(name, now=0) for name in ("w1", "w2")]
    >>> records[0] = records[0].note(120, {0: 20}, layout=Layout.create(1), now=5, watermark=100).record
    >>> parts = take_parts(records, last, WatermarkRules(timeout=60), now=10)
    >>> [record.writer for record in parts.counting], [record.writer for record in parts.holding]
    (['w1'], ['w2'])
    """
    parts = Parts()
    barrier = None if last is None else last.lower
    alive, idle, closed = WriterState.ALIVE, WriterState.IDLE, WriterState.CLOSED
    live_since: int | None = None
    for record in records:
        state, time = record.state, record.time
        is_ahead = time is not None and (barrier is None or time > barrier)
        if state is idle:
            parts.idle.append(record)
        elif is_ahead:
            parts.counting.append(record)
            if state is alive:
                since = record.heard_at if record.ahead_since is None else record.ahead_since
                live_since = since if live_since is None else min(live_since, since)
        elif state is closed:
            parts.leaving.append(record)
        elif state is not alive or now - record.heard_at >= rules.timeout:
            parts.lost.append(record)
        elif record.set_aside or (time is not None and barrier is not None and time < barrier):
            parts.aside.append(record)
        else:
            parts.holding.append(record)
    if live_since is not None:
        # Nobody was ahead of the last entry before it was written.
        begun = live_since if last is None else max(live_since, last.at)
        parts.patience_ends = begun + rules.timeout
        if now >= parts.patience_ends:
            parts.aside += parts.holding
            parts.holding = []
    return parts
