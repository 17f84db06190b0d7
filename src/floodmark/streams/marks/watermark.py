"""The rule of the watermark of one stream and key: what to append to the marks log now, what to wait for, and why."""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from floodmark._util.ints import check_int64
from floodmark.errors import InvalidOption
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import cut_over
from floodmark.streams.marks.log import EntryKind, MarkEntry
from floodmark.streams.marks.writer_record import WriterRecord, WriterState


@dataclass(frozen=True, slots=True)
class WatermarkRules:
    """The settings of a stream that its watermark depends on: durations, in the unit of the store's clock.

    >>> WatermarkRules(timeout=60_000_000)
    WatermarkRules(timeout=60000000, first_delay=0, rate_floor=0, forget_after=None)
    """

    timeout: int
    """How long the watermark waits for a writer that does not get ahead of it, from the writer's last mark."""
    first_delay: int = 0
    """How long after the first mark the first watermark comes, so that all writers have time to start."""
    rate_floor: int = 0
    """The least time between two entries of the marks log."""
    forget_after: int | None = None
    """How long a writer that timed out is remembered, from its last mark; None for ever."""

    def __post_init__(self) -> None:
        """Refuse a duration below 0."""
        for name in ("timeout", "first_delay", "rate_floor", "forget_after"):
            value = getattr(self, name)
            if (value is None and name == "forget_after") or check_int64(value, name) >= 0:
                continue
            raise InvalidOption(
                f"{name} is {value}.",
                rule="A duration is not below 0.",
                remedy="Pass 0 or more, in the unit of the store's clock.",
                option=name,
                value=value,
            )


class WaitReason(enum.Enum):
    """Why nothing is appended now."""

    HELD = "writers that are not ahead hold it"
    NOBODY_AHEAD = "no writer is ahead of the watermark"
    FIRST_DELAY = "the first watermark is delayed so that all writers can start"
    RATE_FLOOR = "the last entry is too recent"
    NOTHING_TO_SAY = "all is said until a writer speaks"


@dataclass(frozen=True, slots=True)
class RecordChanges:
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
        >>> [(before == record, after) for before, after in RecordChanges(removed=(record,)).updates()]
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
    changes: RecordChanges
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
    changes: RecordChanges
    after: int
    writers_version: int


Decision = Emit | Wait


def decide_watermark(
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
    >>> decide_watermark([w1, w2], None, rules, layout=layout, now=2).holders
    ('w2',)
    >>> w2 = w2.note(102, {0: 20}, layout=layout, now=3).record
    >>> print(decide_watermark([w1, w2], None, rules, layout=layout, now=3).entry)
    1: watermark 100 to 102 at {0: 20}, from w1, w2
    """
    parts = classify_writers(records, last, rules, check_int64(now, "now"))
    after = 0 if last is None else last.seq
    said = _next_entry(parts, last, layout)
    if said is None:
        changes = _record_changes(parts, last, rules, now)
        holders = tuple(sorted(record.writer for record in parts.holding))
        until, reason = _next_deadline(parts, last, rules, now)
        return Wait(until, holders, reason, changes, after, writers_version)
    due, reason = _emission_delay(parts, last, rules, now)
    if due is not None:
        return Wait(due, (), reason, _record_changes(parts, last, rules, now), after, writers_version)
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
        cut=_next_cut(parts, last, layout),
        at=now,
    )
    return Emit(entry, _record_changes(parts, last, rules, now, entry), after, writers_version)


@dataclass(slots=True)
class ClassifiedWriters:
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


def _next_entry(
    parts: ClassifiedWriters, last: MarkEntry | None, layout: Layout
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
        is_said = last is not None and kind is EntryKind.IDLE and _next_cut(parts, last, layout) == last.cut
        return None if is_said else (EntryKind.IDLE, lower, [])
    is_said = kind is EntryKind.UNKNOWN or last is None
    return None if is_said else (EntryKind.UNKNOWN, lower, [])


def _next_cut(parts: ClassifiedWriters, last: MarkEntry | None, layout: Layout) -> dict[int, int]:
    """Return the least cut that no known writer, counting or not, and no earlier entry lies behind."""
    positions = (record.position for record in parts.everybody())
    return cut_over(layout, positions, None if last is None else last.cut)


def _emission_delay(
    parts: ClassifiedWriters, last: MarkEntry | None, rules: WatermarkRules, now: int
) -> tuple[int | None, WaitReason]:
    """Return when the next entry may be written, if not now."""
    if last is None:
        begun = [record.marked_since for record in parts.everybody() if record.marked_since is not None]
        first = min(begun) + rules.first_delay if begun else now
        return (first if first > now else None), WaitReason.FIRST_DELAY
    # A clock that was put back must not stop the stream.
    is_too_soon = 0 <= now - last.at < rules.rate_floor
    return (last.at + rules.rate_floor if is_too_soon else None), WaitReason.RATE_FLOOR


def _next_deadline(
    parts: ClassifiedWriters, last: MarkEntry | None, rules: WatermarkRules, now: int
) -> tuple[int | None, WaitReason]:
    """Return the time at which there is something to say, if nobody speaks before."""
    if parts.counting:
        until = max(record.heard_at for record in parts.holding) + rules.timeout
        if parts.patience_ends is not None:
            until = min(until, parts.patience_ends)
        due, _ = _emission_delay(parts, last, rules, now)
        return (until if due is None else max(until, due)), WaitReason.HELD
    waiting = [*parts.holding, *parts.aside]
    if waiting:
        return max(record.heard_at for record in waiting) + rules.timeout, WaitReason.NOBODY_AHEAD
    return None, WaitReason.NOTHING_TO_SAY


def _record_changes(
    parts: ClassifiedWriters, last: MarkEntry | None, rules: WatermarkRules, now: int, entry: MarkEntry | None = None
) -> RecordChanges:
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
    return RecordChanges(
        set_aside=tuple(record for record in parts.aside if not record.set_aside),
        timed_out=tuple(record for record in lost if record.state is not WriterState.TIMED_OUT),
        readmitted=tuple(record for record in parts.counting if record.set_aside and record.state is WriterState.ALIVE),
        removed=tuple(removed),
    )


def _is_in_cut(record: WriterRecord, last: MarkEntry | None) -> bool:
    cut = {} if last is None else last.cut
    return all(offset <= cut.get(number, -1) for number, offset in record.position.items())


def classify_writers(
    records: Iterable[WriterRecord], last: MarkEntry | None, rules: WatermarkRules, now: int
) -> ClassifiedWriters:
    """Give each writer its part at the time `now`.

    >>> last = MarkEntry(1, EntryKind.WATERMARK, 100, 100, ("w1",), {0: 10}, at=0)
    >>> records = [WriterRecord.open(name, now=0) for name in ("w1", "w2")]
    >>> records[0] = records[0].note(120, {0: 20}, layout=Layout.create(1), now=5, watermark=100).record
    >>> parts = classify_writers(records, last, WatermarkRules(timeout=60), now=10)
    >>> [record.writer for record in parts.counting], [record.writer for record in parts.holding]
    (['w1'], ['w2'])
    """
    parts = ClassifiedWriters()
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


_CLASS_WORDS = {
    "counting": "ahead",
    "holding": "holds the watermark",
    "aside": "set aside until it is ahead",
    "idle": "idle",
    "leaving": "closed",
    "lost": "timed out",
}


@dataclass(frozen=True, slots=True)
class WriterView:
    """One writer: its part in the next watermark, its last mark, and when the wait for it ends, if it is waited for."""

    writer: str
    part: str
    time: int | None
    heard_at: int
    released_at: int | None

    def __str__(self) -> str:
        """Return one line for a person."""
        where = "no mark yet" if self.time is None else f"at {self.time}"
        release = "" if self.released_at is None else f", no longer waited for from {self.released_at}"
        return f"{self.writer}: {self.part}, {where}, last heard at {self.heard_at}{release}"


@dataclass(frozen=True, slots=True)
class WatermarkExplanation:
    """The state of the watermark of one stream and key, in values and, as text, in words.

    `holders` keep the next watermark back; `next_at` is when it moves if nobody speaks before, if it does.
    """

    stream: str
    key: str
    watermark: int | None
    kind: EntryKind | None
    waits_for: str
    holders: tuple[str, ...]
    next_at: int | None
    set_aside: tuple[str, ...]
    idle: tuple[str, ...]
    closed: tuple[str, ...]
    timed_out: tuple[str, ...]
    writers: tuple[WriterView, ...] = field(repr=False)

    def __str__(self) -> str:
        """Return the answer in one line and the writers below it."""
        where = "no watermark yet" if self.watermark is None else f"at {self.watermark}"
        gone = {EntryKind.IDLE: ", all writers idle", EntryKind.UNKNOWN: ", all writers gone"}
        note = "" if self.kind is None else gone.get(self.kind, "")
        who = f": {', '.join(self.holders)}" if self.holders else ""
        when = "" if self.next_at is None else f"; at the latest decided at {self.next_at}"
        head = f"{self.stream} {self.key}: {where}{note}, {self.waits_for}{who}{when}"
        return "\n".join([head, *(f"  {view}" for view in self.writers)])


def explain_watermark(
    stream: str,
    key: str,
    records: Iterable[WriterRecord],
    last: MarkEntry | None,
    rules: WatermarkRules,
    *,
    layout: Layout,
    now: int,
) -> WatermarkExplanation:
    """Return why the watermark of a stream and key stands where it stands at the time `now`.

    >>> layout, rules = Layout.create(1), WatermarkRules(timeout=60)
    >>> w1, w2 = (WriterRecord.open(name, now=0) for name in ("w1", "w2"))
    >>> w1 = w1.note(100, {0: 10}, layout=layout, now=1).record
    >>> print(explain_watermark("orders", "order_time", [w1, w2], None, rules, layout=layout, now=2))
    orders order_time: no watermark yet, writers that are not ahead hold it: w2; at the latest decided at 60
      w2: holds the watermark, no mark yet, last heard at 0, no longer waited for from 60
      w1: ahead, at 100, last heard at 1
    """
    known = list(records)
    parts = classify_writers(known, last, rules, now)
    decision = decide_watermark(known, last, rules, layout=layout, now=now)
    next_at: int | None
    if isinstance(decision, Emit):
        waits_for, next_at = f"the next entry ({decision.entry.kind.value}) is about to be written", now
    else:
        waits_for, next_at = decision.reason.value, decision.until
    groups: dict[str, list[WriterRecord]] = {
        "holding": parts.holding,
        "counting": parts.counting,
        "aside": parts.aside,
        "idle": parts.idle,
        "leaving": parts.leaving,
        "lost": parts.lost,
    }
    views: list[WriterView] = []
    for part, members in groups.items():
        for record in sorted(members, key=_by_time):
            released = record.heard_at + rules.timeout
            if parts.patience_ends is not None:
                released = min(released, parts.patience_ends)
            views.append(
                WriterView(
                    writer=record.writer,
                    part=_CLASS_WORDS[part],
                    time=record.time,
                    heard_at=record.heard_at,
                    released_at=released if part == "holding" else None,
                )
            )
    return WatermarkExplanation(
        stream=stream,
        key=key,
        watermark=None if last is None else last.lower,
        kind=None if last is None else last.kind,
        waits_for=waits_for,
        holders=_names(parts.holding),
        next_at=next_at,
        set_aside=_names(parts.aside),
        idle=_names(parts.idle),
        closed=_names(parts.leaving),
        timed_out=_names(parts.lost),
        writers=tuple(views),
    )


def _names(records: Iterable[WriterRecord]) -> tuple[str, ...]:
    return tuple(record.writer for record in sorted(records, key=_by_time))


def _by_time(record: WriterRecord) -> tuple[bool, int, str]:
    """The lowest first, and before them those without a time."""
    return (record.time is not None, record.time or 0, record.writer)
