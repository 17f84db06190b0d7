"""Why a stream's watermark stands where it stands: who holds it, until when, and who is not waited for."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from floodmark.streams._entries import EntryKind, MarkEntry
from floodmark.streams._layout import Layout
from floodmark.streams._parts import take_parts
from floodmark.streams._rules import WatermarkRules
from floodmark.streams._watermarker import Emit, decide
from floodmark.streams._writers import WriterRecord

_PART_WORDS = {
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
    parts = take_parts(known, last, rules, now)
    decision = decide(known, last, rules, layout=layout, now=now)
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
                    part=_PART_WORDS[part],
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
