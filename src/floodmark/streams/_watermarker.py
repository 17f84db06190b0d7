"""The watermarker's rule for one stream and key: what to append to the marks log now, or what to wait for."""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from floodmark._util.ints import check_int64
from floodmark.streams._cuts import cut_over
from floodmark.streams._entries import EntryKind, MarkEntry
from floodmark.streams._layout import Layout
from floodmark.streams._parts import Parts, take_parts
from floodmark.streams._rules import WatermarkRules
from floodmark.streams._writers import WriterRecord, WriterState


class WaitReason(enum.Enum):
    """Why nothing is appended now."""

    HELD = "writers that are not ahead hold it"
    NOBODY_AHEAD = "no writer is ahead of the watermark"
    FIRST_DELAY = "the first watermark is delayed so that all writers can start"
    RATE_FLOOR = "the last entry is too recent"
    NOTHING_TO_SAY = "all is said until a writer speaks"


@dataclass(frozen=True, slots=True)
class Changes:
    """What a decision means for the records: who is set aside, has timed out, is ahead again, or is over.

    Each group holds the records as they were looked at. One that was changed since by its writer stays as it is.
    """

    set_aside: tuple[WriterRecord, ...] = ()
    timed_out: tuple[WriterRecord, ...] = ()
    readmitted: tuple[WriterRecord, ...] = ()
    removed: tuple[WriterRecord, ...] = ()

    def updates(self) -> Iterator[tuple[WriterRecord, WriterRecord | None]]:
        """Return each record as it was looked at, and as it shall be: None if it shall be deleted.

        >>> record = WriterRecord.open("w1", now=0)
        >>> [(before == record, after) for before, after in Changes(removed=(record,)).updates()]
        [(True, None)]
        """
        for record in self.set_aside:
            yield record, replace(record, set_aside=True)
        for record in self.timed_out:
            yield record, replace(record, state=WriterState.TIMED_OUT, set_aside=True)
        for record in self.readmitted:
            yield record, replace(record, set_aside=False)
        for record in self.removed:
            yield record, None


@dataclass(frozen=True, slots=True)
class Emit:
    """Append `entry`, together with `changes`, if the log and the writers are still those the decision was made on.

    That is: the last entry has the number `after` (0 for none), and the writers are at `writers_version`.
    """

    entry: MarkEntry
    changes: Changes
    after: int
    writers_version: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Append nothing. Decide again when a writer speaks, or at `until` (None: only when one speaks).

    `changes` may be stored, on the same conditions as an entry.
    """

    until: int | None
    holders: tuple[str, ...]
    reason: WaitReason
    changes: Changes
    after: int
    writers_version: int


Decision = Emit | Wait


def decide(
    records: Iterable[WriterRecord],
    last: MarkEntry | None,
    rules: WatermarkRules,
    *,
    layout: Layout,
    now: int,
    writers_version: int = 0,
) -> Decision:
    """Return what to do about the marks log of one stream and key at the time `now`.

    A watermark comes when at least one writer is ahead of the last one and none holds it back. Its `lower` is the
    least time of the writers that count; its cut lies behind no writer that is known, whether it counts or not.

    >>> layout, rules = Layout.create(1), WatermarkRules(timeout=60)
    >>> w1, w2 = (WriterRecord.open(name, now=0) for name in ("w1", "w2"))
    >>> w1 = w1.note(100, {0: 10}, layout=layout, now=1).record
    >>> decide([w1, w2], None, rules, layout=layout, now=2).holders
    ('w2',)
    >>> w2 = w2.note(102, {0: 20}, layout=layout, now=3).record
    >>> print(decide([w1, w2], None, rules, layout=layout, now=3).entry)
    1: watermark 100 to 102 at {0: 20}, from w1, w2
    """
    parts = take_parts(records, last, rules, check_int64(now, "now"))
    after = 0 if last is None else last.seq
    said = _what_to_say(parts, last, layout)
    if said is None:
        changes = _changes(parts, last, rules, now)
        holders = tuple(sorted(record.writer for record in parts.holding))
        until, reason = _what_to_wait_for(parts, last, rules, now)
        return Wait(until, holders, reason, changes, after, writers_version)
    due, reason = _due(parts, last, rules, now)
    if due is not None:
        return Wait(due, (), reason, _changes(parts, last, rules, now), after, writers_version)
    kind, lower, writers = said
    times = [record.time for record in parts.everybody() if record.time is not None]
    if last is not None and last.upper is not None:
        times.append(last.upper)
    entry = MarkEntry(
        seq=after + 1,
        kind=kind,
        lower=lower,
        upper=max(times, default=None),
        writers=tuple(sorted(writers)),
        cut=_cut(parts, last, layout),
        at=now,
    )
    return Emit(entry, _changes(parts, last, rules, now, entry), after, writers_version)


def _what_to_say(
    parts: Parts, last: MarkEntry | None, layout: Layout
) -> tuple[EntryKind, int | None, list[str]] | None:
    """Return the kind, `lower` and writers of the next entry, or None if there is nothing to say."""
    lower, kind = (None, None) if last is None else (last.lower, last.kind)
    if parts.holding:
        return None
    if parts.counting:
        least = min(record.time for record in parts.counting if record.time is not None)
        return EntryKind.WATERMARK, least, [record.writer for record in parts.counting]
    if parts.aside:
        return None
    if parts.idle:
        times = {record.writer: record.time for record in parts.idle if record.time is not None}
        top = max(times.values(), default=None)
        if top is not None and (lower is None or top > lower):
            # Who is idle below the top has promised less than that, and does not count.
            return EntryKind.WATERMARK, top, [writer for writer, time in times.items() if time == top]
        # Rows after the last word of idleness ended it for their readers; it must be said again behind them.
        is_said = last is not None and kind is EntryKind.IDLE and _cut(parts, last, layout) == last.cut
        return None if is_said else (EntryKind.IDLE, lower, [])
    is_said = kind is EntryKind.UNKNOWN or last is None
    return None if is_said else (EntryKind.UNKNOWN, lower, [])


def _cut(parts: Parts, last: MarkEntry | None, layout: Layout) -> dict[int, int]:
    """Return the least cut that no known writer, counting or not, and no earlier entry lies behind."""
    positions = (record.position for record in parts.everybody())
    return cut_over(layout, positions, None if last is None else last.cut)


def _due(parts: Parts, last: MarkEntry | None, rules: WatermarkRules, now: int) -> tuple[int | None, WaitReason]:
    """Return when the next entry may be written, if not now."""
    if last is None:
        begun = [record.marked_since for record in parts.everybody() if record.marked_since is not None]
        first = min(begun) + rules.first_delay if begun else now
        return (first if first > now else None), WaitReason.FIRST_DELAY
    # A clock that was put back must not stop the stream.
    is_too_soon = 0 <= now - last.at < rules.rate_floor
    return (last.at + rules.rate_floor if is_too_soon else None), WaitReason.RATE_FLOOR


def _what_to_wait_for(
    parts: Parts, last: MarkEntry | None, rules: WatermarkRules, now: int
) -> tuple[int | None, WaitReason]:
    """Return the time at which there is something to say, if nobody speaks before."""
    if parts.counting:
        until = max(record.heard_at for record in parts.holding) + rules.timeout
        if parts.patience_ends is not None:
            until = min(until, parts.patience_ends)
        due, _ = _due(parts, last, rules, now)
        return (until if due is None else max(until, due)), WaitReason.HELD
    waiting = [*parts.holding, *parts.aside]
    if waiting:
        return max(record.heard_at for record in waiting) + rules.timeout, WaitReason.NOBODY_AHEAD
    return None, WaitReason.NOTHING_TO_SAY


def _changes(
    parts: Parts, last: MarkEntry | None, rules: WatermarkRules, now: int, entry: MarkEntry | None = None
) -> Changes:
    """Return what the parts, and the next entry if there is one, mean for the records.

    Nobody is removed before a cut has its position, and a closed writer not before the watermark has come to its time.
    """
    removed = [record for record in parts.leaving if entry is not None or _is_in_cut(record, last)]
    lost = parts.lost
    if entry is not None:
        closed = (record for record in parts.counting if record.state is WriterState.CLOSED)
        removed += [record for record in closed if record.time == entry.lower]
        if rules.forget_after is not None:
            removed += [record for record in lost if now - record.heard_at >= rules.forget_after]
            lost = [record for record in lost if now - record.heard_at < rules.forget_after]
    return Changes(
        set_aside=tuple(record for record in parts.aside if not record.set_aside),
        timed_out=tuple(record for record in lost if record.state is not WriterState.TIMED_OUT),
        readmitted=tuple(record for record in parts.counting if record.set_aside and record.state is WriterState.ALIVE),
        removed=tuple(removed),
    )


def _is_in_cut(record: WriterRecord, last: MarkEntry | None) -> bool:
    cut = {} if last is None else last.cut
    return all(offset <= cut.get(number, -1) for number, offset in record.position.items())
