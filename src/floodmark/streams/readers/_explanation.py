"""Why a group's window stands where it stands: which segments hold it, who reads them, and who is waited for."""

from dataclasses import dataclass

from floodmark.streams._catalog import StreamInfo
from floodmark.streams._positions import Standing, compare
from floodmark.streams._windows import TimeWindow
from floodmark.streams.readers._reader_windows import StreamWindow
from floodmark.streams.readers._state import GroupState, StreamPart


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of the group's position: who reads it, how far it is, and whether it holds the window."""

    segment: int
    reader: str | None
    offset: int
    time: int | None
    """How far it is in time, taken alone, by the key of the group."""
    behind: int | None
    """By how much that is below the newest watermark, in the unit of the stream."""
    moved_at: int | None
    """When it last moved, by the clock of the store, in microseconds."""
    holds: bool
    is_finished: bool

    def __str__(self) -> str:
        """Return one line for a person."""
        who = "read by nobody" if self.reader is None else f"read by {self.reader}"
        if self.is_finished:
            who = "finished"
        held = ", holds the window" if self.holds else ""
        time = "" if self.time is None else f", at the time {self.time}"
        behind = f", {self.behind} behind" if self.behind else ""
        since = "" if self.moved_at is None else f", last moved at {self.moved_at}"
        return f"segment {self.segment} at {self.offset}: {who}{held}{time}{behind}{since}"


@dataclass(frozen=True, slots=True)
class GroupExplanation:
    """Where a group is in one stream and key, in values and, as text, in words.

    `next_lower` is where the lower bound goes when the `holders` have moved on; without one, the group has passed
    every mark, and the stream's own watermark holds it: see `Stream.why`.
    """

    group: str
    stream: str
    key: str
    window: TimeWindow | None
    next_lower: int | None
    holders: tuple[int, ...]
    segments: tuple[SegmentView, ...]
    readers: tuple[str, ...]
    unassigned: tuple[int, ...]
    pending_checkpoint: str | None
    waits_for: tuple[str, ...]
    """Readers that have not confirmed it."""

    def __str__(self) -> str:
        """Return the answer in one line, and the segments below it."""
        where = "no window" if self.window is None else f"from {self.window.lower} to {self.window.upper}"
        if self.holders:
            held = f", segments {', '.join(map(str, self.holders))} hold it"
            held += "" if self.next_lower is None else f" below {self.next_lower}"
        else:
            held = ", every mark is passed"
        lines = [f"{self.group} in {self.stream} {self.key}: {where}{held}"]
        lines += [f"  {view}" for view in self.segments]
        lines.append(f"  readers: {', '.join(self.readers) or 'none'}")
        if self.pending_checkpoint is not None:
            lines.append(f"  the checkpoint {self.pending_checkpoint} waits for {', '.join(self.waits_for)}")
        return "\n".join(lines)


def explain_group(
    state: GroupState,
    part: StreamPart,
    key: str,
    found: TimeWindow | None,
    window: StreamWindow,
    stream: StreamInfo,
) -> GroupExplanation:
    """Return why the window of a group over one stream and key is what it is."""
    numbers = window.marks.numbers()
    next_number = numbers.start if window.place is None else window.place + 1
    entry = window.marks.entry(next_number) if next_number in numbers else None
    newest = window.marks.entry(numbers[-1]).lower if numbers else None
    views = []
    for segment, offset in sorted(part.position.items()):
        owner = state.owner((part.name, segment))
        time = part.times.get(segment) if key == part.key else None
        holds = entry is not None and compare(stream.layout, {segment: offset}, entry.cut) is not Standing.PASSED
        views.append(
            SegmentView(
                segment=segment,
                reader=None if owner is None else owner.id,
                offset=offset,
                time=time,
                behind=None if time is None or newest is None else max(0, newest - time),
                moved_at=part.moved.get(segment),
                holds=holds,
                is_finished=segment in part.finished,
            )
        )
    pending = state.pending
    return GroupExplanation(
        group=state.name,
        stream=part.name,
        key=key,
        window=found,
        next_lower=None if entry is None else entry.lower,
        holders=tuple(view.segment for view in views if view.holds),
        segments=tuple(views),
        readers=tuple(reader.id for reader in state.readers),
        unassigned=tuple(sorted(number for name, number in state.unassigned() if name == part.name)),
        pending_checkpoint=None if pending is None else pending.name,
        waits_for=() if pending is None else tuple(sorted(pending.waits_for)),
    )
