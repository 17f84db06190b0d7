"""The watermark rule of one stream and key: what to append to the marks log now, what it waits for, and why."""

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from floodmark._util.ints import check_int64
from floodmark._util.times import time_text
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
    """How long the watermark waits for a writer that is not ahead of it, counted from the writer's last mark."""
    first_delay: int = 0
    """The delay from the first mark to the first watermark, so that all writers have time to start."""
    rate_floor: int = 0
    """The minimum time between two entries of the marks log."""
    forget_after: int | None = None
    """How long the record of a timed-out writer is kept, counted from its last mark; None: forever."""

    def __post_init__(self) -> None:
        """Refuse a negative duration."""
        for name in ("timeout", "first_delay", "rate_floor", "forget_after"):
            value = getattr(self, name)
            if (value is None and name == "forget_after") or check_int64(value, name) >= 0:
                continue
            raise InvalidOption(
                f"{name} is {value}.",
                rule="A duration is not negative.",
                remedy="Pass 0 or more, in the unit of the store's clock.",
                option=name,
                value=value,
            )


class WaitReason(enum.Enum):
    """Why no entry is appended now."""

    HELD = "writers that are not ahead hold it"
    NO_WRITER_AHEAD = "no writer is ahead of the watermark"
    FIRST_DELAY = "the first watermark is delayed so that all writers can start"
    RATE_FLOOR = "the last entry is too recent"
    UP_TO_DATE = "nothing changes until a writer notes time"


@dataclass(frozen=True, slots=True)
class RecordChanges:
    """Changes to writer records that follow from a decision: set aside, timed out, readmitted or removed.

    Each tuple has the records as the decision read them, after `rewind_records`. A record that its writer has changed
    since is left alone.
    """

    set_aside: tuple[WriterRecord, ...] = ()
    timed_out: tuple[WriterRecord, ...] = ()
    readmitted: tuple[WriterRecord, ...] = ()
    removed: tuple[WriterRecord, ...] = ()
    rewound: tuple[WriterRecord, ...] = ()
    """Records with times in the future, set to now; some of them are also in another tuple."""

    def updates(self) -> Iterator[tuple[WriterRecord, WriterRecord | None]]:
        """Yield each record as it was read, and its new value: None to delete it.

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
        others = {record.writer for record in (*self.set_aside, *self.timed_out, *self.readmitted, *self.removed)}
        for record in self.rewound:
            if record.writer not in others:
                yield record, record


@dataclass(frozen=True, slots=True)
class Emit:
    """Append `entry` and store `changes`, if the log and the writers are unchanged since the decision was made.

    Unchanged means: the last entry has the number `after` (0 for none), and the writers are at `writers_version`.
    """

    entry: MarkEntry
    changes: RecordChanges
    after: int
    writers_version: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Append nothing. Decide again when a writer's record changes, or at `until` (None: only on a change).

    `changes` may be stored under the same conditions as an entry.
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
    """Return what to append to the marks log of one stream and key at the time `now`, or how long to wait.

    A watermark is emitted when at least one writer is ahead of the last one and no writer holds it back. Its `lower`
    is the least time of the counting writers (see `ClassifiedWriters`). Its cut has passed the position of every
    known writer, counting or not.

    >>> layout, rules = Layout.create(1), WatermarkRules(timeout=60)
    >>> w1, w2 = (WriterRecord.open(name, now=0) for name in ("w1", "w2"))
    >>> w1 = w1.note(100, {0: 10}, layout=layout, now=1).record
    >>> decide_watermark([w1, w2], None, rules, layout=layout, now=2).holders
    ('w2',)
    >>> w2 = w2.note(102, {0: 20}, layout=layout, now=3).record
    >>> print(decide_watermark([w1, w2], None, rules, layout=layout, now=3).entry)
    1: watermark 100 to 102 at {0: 20}, from w1, w2
    """
    classified = classify_writers(records, last, rules, check_int64(now, "now"))
    after = 0 if last is None else last.seq
    next_entry = _next_entry(classified, last, layout)
    if next_entry is None:
        changes = _record_changes(classified, last, rules, now)
        holders = tuple(sorted(record.writer for record in classified.holding))
        until, reason = _next_deadline(classified, last, rules, now)
        return Wait(until, holders, reason, changes, after, writers_version)
    due, reason = _emission_delay(classified, last, rules, now)
    if due is not None:
        return Wait(due, (), reason, _record_changes(classified, last, rules, now), after, writers_version)
    kind, lower, writers = next_entry
    times = [record.time for record in classified.all_records() if record.time is not None]
    if last is not None and last.upper is not None:
        times.append(last.upper)
    entry = MarkEntry(
        seq=after + 1,
        kind=kind,
        lower=lower,
        upper=max(times, default=None),
        writers=tuple(sorted(writers)),
        cut=_next_cut(classified, last, layout),
        at=now,
    )
    return Emit(entry, _record_changes(classified, last, rules, now, entry), after, writers_version)


@dataclass(slots=True)
class ClassifiedWriters:
    """All known writers of a stream and key, grouped by their effect on the next watermark.

    - `counting`: ahead of the last watermark. A closed writer counts too, until the watermark has reached its time.
    - `holding`: alive and not ahead, or without a mark. The next watermark waits for them.
    - `aside`: alive but late: they fell behind the watermark. It does not wait for them until they are ahead again.
    - `idle`: declared themselves idle.
    - `leaving`: closed and not ahead.
    - `lost`: timed out, now or before.

    Those in `rewound` are also in one of these groups: their times were in the future, see `rewind_records`.

    While an alive writer is ahead, the watermark waits at most one timeout: at `hold_deadline` the holding writers are
    set aside, even if they still send marks.
    """

    counting: list[WriterRecord] = field(default_factory=list)
    holding: list[WriterRecord] = field(default_factory=list)
    aside: list[WriterRecord] = field(default_factory=list)
    idle: list[WriterRecord] = field(default_factory=list)
    leaving: list[WriterRecord] = field(default_factory=list)
    lost: list[WriterRecord] = field(default_factory=list)
    rewound: list[WriterRecord] = field(default_factory=list)
    hold_deadline: int | None = None

    def all_records(self) -> list[WriterRecord]:
        """Return the records of all writers."""
        return [*self.counting, *self.holding, *self.aside, *self.idle, *self.leaving, *self.lost]


def _next_entry(
    classified: ClassifiedWriters, last: MarkEntry | None, layout: Layout
) -> tuple[EntryKind, int | None, list[str]] | None:
    """Return the kind, `lower` and writers of the next entry, or None if no entry is needed."""
    lower, kind = (None, None) if last is None else (last.lower, last.kind)
    if classified.holding:
        return None
    if classified.counting:
        least = min(record.time for record in classified.counting if record.time is not None)
        return EntryKind.WATERMARK, least, [record.writer for record in classified.counting]
    if classified.aside:
        return None
    if classified.idle:
        times = {record.writer: record.time for record in classified.idle if record.time is not None}
        top = max(times.values(), default=None)
        if top is not None and (lower is None or top > lower):
            # Idle writers below the greatest time promised less, so they do not count.
            return EntryKind.WATERMARK, top, [writer for writer, time in times.items() if time == top]
        # Readers end the idle state at rows after the last IDLE entry, so another one must follow those rows.
        is_logged = last is not None and kind is EntryKind.IDLE and _next_cut(classified, last, layout) == last.cut
        return None if is_logged else (EntryKind.IDLE, lower, [])
    is_logged = kind is EntryKind.UNKNOWN or last is None
    return None if is_logged else (EntryKind.UNKNOWN, lower, [])


def _next_cut(classified: ClassifiedWriters, last: MarkEntry | None, layout: Layout) -> dict[int, int]:
    """Return the least cut that has passed the positions of all known writers and the cut of the last entry."""
    positions = (record.position for record in classified.all_records())
    return cut_over(layout, positions, None if last is None else last.cut)


def _emission_delay(
    classified: ClassifiedWriters, last: MarkEntry | None, rules: WatermarkRules, now: int
) -> tuple[int | None, WaitReason]:
    """Return when the next entry may be written (None: now), and the reason for the delay."""
    if last is None:
        first_marks = [record.marked_since for record in classified.all_records() if record.marked_since is not None]
        first = min(first_marks) + rules.first_delay if first_marks else now
        return (first if first > now else None), WaitReason.FIRST_DELAY
    # If the clock was set back, do not delay until it catches up.
    is_too_soon = 0 <= now - last.at < rules.rate_floor
    return (last.at + rules.rate_floor if is_too_soon else None), WaitReason.RATE_FLOOR


def _next_deadline(
    classified: ClassifiedWriters, last: MarkEntry | None, rules: WatermarkRules, now: int
) -> tuple[int | None, WaitReason]:
    """Return when to decide again if no writer record changes before, and the reason to wait."""
    if classified.counting:
        until = max(record.heard_at for record in classified.holding) + rules.timeout
        if classified.hold_deadline is not None:
            until = min(until, classified.hold_deadline)
        due, _ = _emission_delay(classified, last, rules, now)
        return (until if due is None else max(until, due)), WaitReason.HELD
    waiting = [*classified.holding, *classified.aside]
    if waiting:
        return max(record.heard_at for record in waiting) + rules.timeout, WaitReason.NO_WRITER_AHEAD
    return None, WaitReason.UP_TO_DATE


def _record_changes(
    classified: ClassifiedWriters,
    last: MarkEntry | None,
    rules: WatermarkRules,
    now: int,
    entry: MarkEntry | None = None,
) -> RecordChanges:
    """Return the record changes that follow from the classification and from the next entry, if there is one.

    A record is removed only after a cut includes its position, and the record of a closed writer only after the
    watermark has reached its time.
    """
    removed = [record for record in classified.leaving if entry is not None or _is_in_cut(record, last)]
    lost = classified.lost
    if entry is not None:
        closed = (record for record in classified.counting if record.state is WriterState.CLOSED)
        removed += [record for record in closed if record.time == entry.lower]
        if rules.forget_after is not None:
            removed += [record for record in lost if now - record.heard_at >= rules.forget_after]
            lost = [record for record in lost if now - record.heard_at < rules.forget_after]
    return RecordChanges(
        set_aside=tuple(record for record in classified.aside if not record.set_aside),
        timed_out=tuple(record for record in lost if record.state is not WriterState.TIMED_OUT),
        readmitted=tuple(
            record for record in classified.counting if record.set_aside and record.state is WriterState.ALIVE
        ),
        removed=tuple(removed),
        rewound=tuple(classified.rewound),
    )


def _is_in_cut(record: WriterRecord, last: MarkEntry | None) -> bool:
    cut = {} if last is None else last.cut
    return all(offset <= cut.get(number, -1) for number, offset in record.position.items())


def classify_writers(
    records: Iterable[WriterRecord], last: MarkEntry | None, rules: WatermarkRules, now: int
) -> ClassifiedWriters:
    """Group the writers by their effect on the next watermark at the time `now`; see `ClassifiedWriters`.

    >>> last = MarkEntry(1, EntryKind.WATERMARK, 100, 100, ("w1",), {0: 10}, at=0)
    >>> records = [WriterRecord.open(name, now=0) for name in ("w1", "w2")]
    >>> records[0] = records[0].note(120, {0: 20}, layout=Layout.create(1), now=5, watermark=100).record
    >>> writers = classify_writers(records, last, WatermarkRules(timeout=60), now=10)
    >>> [record.writer for record in writers.counting], [record.writer for record in writers.holding]
    (['w1'], ['w2'])
    """
    records, rewound = rewind_records(records, now)
    classified = ClassifiedWriters(rewound=rewound)
    watermark = None if last is None else last.lower
    alive, idle, closed = WriterState.ALIVE, WriterState.IDLE, WriterState.CLOSED
    ahead_since: int | None = None
    for record in records:
        state, time = record.state, record.time
        is_ahead = time is not None and (watermark is None or time > watermark)
        if state is idle:
            classified.idle.append(record)
        elif is_ahead:
            classified.counting.append(record)
            if state is alive:
                since = record.heard_at if record.ahead_since is None else record.ahead_since
                ahead_since = since if ahead_since is None else min(ahead_since, since)
        elif state is closed:
            classified.leaving.append(record)
        elif state is not alive or now - record.heard_at >= rules.timeout:
            classified.lost.append(record)
        elif record.set_aside or (time is not None and watermark is not None and time < watermark):
            classified.aside.append(record)
        else:
            classified.holding.append(record)
    if ahead_since is not None:
        # No writer was ahead of the last entry before it was written. An entry of the future was written before the
        # clock was set back, and so before the records were rewound.
        waiting_since = ahead_since if last is None or last.at > now else max(ahead_since, last.at)
        classified.hold_deadline = waiting_since + rules.timeout
        if now >= classified.hold_deadline:
            classified.aside += classified.holding
            classified.holding = []
    return classified


def rewind_records(records: Iterable[WriterRecord], now: int) -> tuple[list[WriterRecord], list[WriterRecord]]:
    """Return the records as they count after the clock was set back, and those that changed.

    Times in the future become now. Then no writer counts as ahead since an earlier time either: the time between is not
    known, and a writer must not be set aside before a whole timeout has passed.

    >>> record = WriterRecord.open("w1", now=3_700).note(5, {0: 1}, layout=Layout.create(1), now=3_700).record
    >>> [record.ahead_since for record in rewind_records([record], now=100)[1]]
    [100]
    """
    before = list(records)
    if all(record.latest_time <= now for record in before):
        return before, []
    after = [record.rewound(now=now) for record in before]
    after = [record if record.ahead_since is None else replace(record, ahead_since=now) for record in after]
    return after, [new for old, new in zip(before, after, strict=True) if new is not old]


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
    """One writer: its effect on the next watermark (`part`), its last mark, and when the wait for it ends, if any."""

    writer: str
    part: str
    time: int | None
    heard_at: int
    released_at: int | None

    def __str__(self) -> str:
        """Return one line of text."""
        where = "no mark yet" if self.time is None else f"at {time_text(self.time)}"
        release = "" if self.released_at is None else f", no longer waited for from {time_text(self.released_at)}"
        return f"{self.writer}: {self.part}, {where}, last heard at {time_text(self.heard_at)}{release}"


@dataclass(frozen=True, slots=True)
class WatermarkExplanation:
    """Why the watermark of one stream and key is where it is; `str()` gives it as text.

    `holders` are the writers that hold the next watermark back. `next_at` is when the next entry is decided at the
    latest, or None if nothing happens until a writer notes time.
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
        """Return a summary line, and one line for each writer."""
        where = "no watermark yet" if self.watermark is None else f"at {time_text(self.watermark)}"
        gone = {EntryKind.IDLE: ", all writers idle", EntryKind.UNKNOWN: ", all writers gone"}
        note = "" if self.kind is None else gone.get(self.kind, "")
        holders = f": {', '.join(self.holders)}" if self.holders else ""
        when = "" if self.next_at is None else f"; decided at {time_text(self.next_at)} at the latest"
        head = f"{self.stream} {self.key}: {where}{note}, {self.waits_for}{holders}{when}"
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
    """Return why the watermark of a stream and key is where it is at the time `now`.

    >>> layout, rules = Layout.create(1), WatermarkRules(timeout=60)
    >>> w1, w2 = (WriterRecord.open(name, now=0) for name in ("w1", "w2"))
    >>> w1 = w1.note(100, {0: 10}, layout=layout, now=1).record
    >>> print(explain_watermark("orders", "order_time", [w1, w2], None, rules, layout=layout, now=2))
    orders order_time: no watermark yet, writers that are not ahead hold it: w2; decided at 60 at the latest
      w2: holds the watermark, no mark yet, last heard at 0, no longer waited for from 60
      w1: ahead, at 100, last heard at 1
    """
    all_records = list(records)
    classified = classify_writers(all_records, last, rules, now)
    decision = decide_watermark(all_records, last, rules, layout=layout, now=now)
    next_at: int | None
    if isinstance(decision, Emit):
        waits_for, next_at = f"the next entry ({decision.entry.kind.value}) is about to be written", now
    else:
        waits_for, next_at = decision.reason.value, decision.until
    by_class: dict[str, list[WriterRecord]] = {
        "holding": classified.holding,
        "counting": classified.counting,
        "aside": classified.aside,
        "idle": classified.idle,
        "leaving": classified.leaving,
        "lost": classified.lost,
    }
    views: list[WriterView] = []
    for writer_class, members in by_class.items():
        for record in sorted(members, key=_by_time):
            released = record.heard_at + rules.timeout
            if classified.hold_deadline is not None:
                released = min(released, classified.hold_deadline)
            views.append(
                WriterView(
                    writer=record.writer,
                    part=_CLASS_WORDS[writer_class],
                    time=record.time,
                    heard_at=record.heard_at,
                    released_at=released if writer_class == "holding" else None,
                )
            )
    return WatermarkExplanation(
        stream=stream,
        key=key,
        watermark=None if last is None else last.lower,
        kind=None if last is None else last.kind,
        waits_for=waits_for,
        holders=_names(classified.holding),
        next_at=next_at,
        set_aside=_names(classified.aside),
        idle=_names(classified.idle),
        closed=_names(classified.leaving),
        timed_out=_names(classified.lost),
        writers=tuple(views),
    )


def _names(records: Iterable[WriterRecord]) -> tuple[str, ...]:
    return tuple(record.writer for record in sorted(records, key=_by_time))


def _by_time(record: WriterRecord) -> tuple[bool, int, str]:
    """Sort records without a time first, then by time."""
    return (record.time is not None, record.time or 0, record.writer)
