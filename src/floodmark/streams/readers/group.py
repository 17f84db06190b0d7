"""A reader group: where it is and why, who reads for it, its checkpoints, and how it is reset."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from floodmark._util.ints import check_int64
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, duration_micros
from floodmark.errors import CheckpointFailed, CheckpointPending, ForeignCheckpoint, InvalidOption, UnknownReader
from floodmark.streams.definition import StreamInfo
from floodmark.streams.groups.bounds import bounds_of
from floodmark.streams.groups.requests import Bound, GroupRef, NewGroup, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import (
    Checkpoint,
    GroupCut,
    GroupState,
    StreamPart,
    check_group_name,
    find_group_stream,
)
from floodmark.streams.layout.positions import Standing, compare
from floodmark.streams.marks.windows import StreamWindow, TimeWindow
from floodmark.streams.ports import Backend
from floodmark.streams.readers.reader import Reader

GroupBounds = Any
"""Where a group begins or ends: a `GroupCut`, a `Checkpoint`, {stream: cut or time}, a time, or a cut of one stream."""

_LOOK_SECONDS: Final = 0.5
_MOST_ROWS: Final = 65_536


def create_group(
    backend: Backend,
    name: str,
    streams: Sequence[str] | str,
    *,
    start: GroupBounds = None,
    end: GroupBounds = None,
    key: str | None = None,
    after_last: str = "wait",
) -> "ReaderGroup":
    """Create a group: see `StreamHome.create_group`."""
    names = [streams] if isinstance(streams, str) else list(streams)
    if after_last not in ("wait", "refuse"):
        raise InvalidOption(
            f"after_last is {after_last!r}.",
            rule="It is 'wait' or 'refuse'.",
            remedy="Leave it out to wait until the marks log has come to a time.",
            option="after_last",
            value=after_last,
        )
    infos = [backend.catalog.find(stream) for stream in names]
    starts, ends = bounds_of(start, infos), bounds_of(end, infos)
    wanted = tuple(
        StreamBounds(stream, key, starts.get(stream, Bound()), ends.get(stream, Bound()), after_last == "wait")
        for stream in names
    )
    group = NewGroup(check_group_name("group", name), uuid.uuid4().int >> 66, wanted)
    return ReaderGroup(backend, backend.groups.create(group))


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


class ReaderGroup:
    """A group of readers that share the segments of some streams; get one from `StreamHome.create_group` or `.group`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/tills", segments=2)
    ...     group = home.create_group("billing", "shop/tills")
    ...     with group.reader("r1") as one, group.reader("r2") as other:
    ...         print(group.readers())
    ...     print(group.cut())
    ('r1', 'r2')
    shop/tills at {0: 0, 1: 0}
    """

    __slots__ = ("_backend", "_ref")

    def __init__(self, backend: Backend, state: GroupState) -> None:
        """Use a `StreamHome`."""
        self._backend = backend
        self._ref = GroupRef(state.name, state.group_id)

    @property
    def name(self) -> str:
        """Its name."""
        return self._ref.name

    @property
    def state(self) -> GroupState:
        """All that is kept of it, now; readers that have fallen silent are sent away first."""
        return self._backend.groups.tend(self._ref)

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams."""
        return self.state.streams

    @property
    def is_finished(self) -> bool:
        """Whether it has read all there will ever be: up to its end, or to the ends of streams that are sealed."""
        return self.state.is_finished

    def readers(self) -> tuple[str, ...]:
        """Return the ids of the readers that are alive."""
        return tuple(reader.id for reader in self.state.readers)

    def reader(
        self,
        id: str,  # noqa: A002
        *,
        ttl: Duration = "30 seconds",
        on_checkpoint: Callable[[str], object] | None = None,
        max_rows: int = _MOST_ROWS,
    ) -> Reader:
        """Open a reader under an id that no living reader of the group has.

        Args:
            id: Its name in the group.
            ttl: How long it may be silent before others read its segments. It speaks by itself, in a thread of its own.
            on_checkpoint: Called with the name of a checkpoint, in the thread that reads, between two batches; what
                the application keeps under that name belongs to exactly what was read before.
            max_rows: How many rows a batch has at most.
        """
        most = check_int64(max_rows, "max_rows")
        if most < 1:
            raise InvalidOption(
                f"max_rows is {most}.",
                rule="A batch has at least one row.",
                remedy=f"Leave it out for {_MOST_ROWS}.",
                option="max_rows",
                value=most,
            )
        micros, instance = duration_micros(ttl, "ttl", least=1_000), uuid.uuid4().hex
        state = self._backend.groups.join(self._ref, check_group_name("reader", id), instance, micros)
        try:
            return Reader(self._backend, state, id, instance, micros, most, on_checkpoint)
        except BaseException:
            self._backend.groups.leave(self._ref, Report(id, instance, state.generation))
            raise

    def expel(self, reader: str) -> None:
        """Send a reader away that is known to be dead, without waiting for its ttl."""
        state = self.state
        record = state.reader(reader)
        if record is None:
            known = [one.id for one in state.readers]
            raise UnknownReader(
                f"The group {self.name!r} has no reader {reader!r}.",
                rule=f"Its readers are {', '.join(map(repr, known)) or 'none'}.",
                remedy=did_you_mean(str(reader), known, otherwise="It has gone already, or never was."),
                group=self.name,
                reader=reader,
            )
        self._backend.groups.expel(self._ref, reader, record.instance)

    def time_window(self, stream: str | None = None, key: str | None = None) -> TimeWindow | None:
        """Return where the group is in time, by what its readers have reported; see `Reader.time_window`."""
        part = self.state.part(stream)
        info = find_group_stream(self._backend.catalog, part)
        return self._window(part, info, info.settings.key(key)).at(part.position)

    def cut(self) -> GroupCut:
        """Return where the group is: what its readers have reported. Nothing is waited for."""
        return self.state.cut

    def checkpoint(self, name: str | None = None, timeout: Duration = "30 seconds") -> Checkpoint:
        """Return a cut at which every living reader is between two batches, and has told its application so.

        Readers confirm when they read or acknowledge. If one does neither in time, nothing is left of the checkpoint.
        """
        micros = duration_micros(timeout, "timeout", least=1)
        give_up = time.monotonic() + micros / 1e6
        while True:
            try:
                return self.begin_checkpoint(name, timeout).result()
            except CheckpointPending:
                # Somebody else takes one. It ends, since it has a timeout too.
                if time.monotonic() >= give_up:
                    raise
                time.sleep(0.01)

    def begin_checkpoint(self, name: str | None = None, timeout: Duration = "30 seconds") -> "CheckpointRequest":
        """Ask for a checkpoint, and go on; `result` waits for it. Refused while another one is under way.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/tills")
        ...     group = home.create_group("billing", "shop/tills")
        ...     with group.reader("r1", on_checkpoint=print) as reader:
        ...         request = group.begin_checkpoint("noon")
        ...         batch = reader.read("0 seconds")
        ...         print(request.result())
        noon
        noon of billing: shop/tills at {0: 0}
        """
        checkpoint = uuid.uuid4().hex
        shown = check_group_name("checkpoint", checkpoint if name is None else name)
        micros = duration_micros(timeout, "timeout", least=1)
        self._backend.groups.start_checkpoint(self._ref, checkpoint, shown, micros)
        return CheckpointRequest(self._backend, self._ref, checkpoint, shown, micros)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Return the newest checkpoints that are complete, the last one last."""
        return self.state.checkpoints

    def reset(self, to: GroupBounds) -> None:
        """Set the group to a checkpoint of its own, a cut, or a time. Its readers must be opened again.

        Windows begin anew at the place in the marks log that belongs there. From a time on, rows are filtered by it.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/tills")
        ...     group = home.create_group("billing", "shop/tills")
        ...     group.reset({0: 5})
        Traceback (most recent call last):
        floodmark.errors.OffsetOutOfRange: The group would begin at offset 5 ... [offset-out-of-range]
        """
        if isinstance(to, Checkpoint) and (to.group, to.group_id) != (self.name, self._ref.id):
            raise ForeignCheckpoint(
                f"The checkpoint {to.name!r} is of the group {to.group!r}.",
                rule="A group is set to checkpoints of its own; one that was created anew is another group.",
                remedy="Pass checkpoint.cut to begin at the same place.",
                group=self.name,
                checkpoint=to.name,
            )
        if to is None:
            raise InvalidOption(
                "No place is given.",
                rule="A group is set to a checkpoint, a cut or a time.",
                remedy="To begin at the head, pass stream.head().",
                option="to",
                value=None,
            )
        state = self._backend.groups.find(self.name)
        infos = [find_group_stream(self._backend.catalog, part) for part in state.parts]
        starts = bounds_of(to, infos)
        wanted = tuple(StreamBounds(stream, start=start) for stream, start in starts.items() if not start.is_open)
        self._backend.groups.reset(self._ref, uuid.uuid4().hex, wanted)

    def why(self, stream: str | None = None, key: str | None = None) -> GroupExplanation:
        """Return what holds the group's window: which segments, who has them, since when, how far they are behind.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/tills")
        ...     with stream.writer("till-3") as writer:
        ...         writer.write({"paid": 7})
        ...         outcome, entry = writer.note_time(1_000), stream.await_mark(1_000)
        ...     print(home.create_group("billing", "shop/tills").why())
        billing in shop/tills time: from None to 1000, segments 0 hold it below 1000
          segment 0 at 0: read by nobody, holds the window
          readers: none
        """
        state = self.state
        part = state.part(stream)
        info = find_group_stream(self._backend.catalog, part)
        shown = info.settings.key(key)
        window = self._window(part, info, shown)
        return explain_group(state, part, shown, window.at(part.position), window, info)

    def delete(self) -> None:
        """Forget the group. Its streams stay as they are."""
        self._backend.groups.delete(self._ref)

    def _window(self, part: StreamPart, info: StreamInfo, key: str) -> StreamWindow:
        index, catalog = self._backend.marks(info, key), self._backend.catalog
        return StreamWindow(index, part.places.get(key), lambda new: (catalog.refresh(info) if new else info).layout)

    def __repr__(self) -> str:
        return f"ReaderGroup({self.name!r})"


class CheckpointRequest:
    """A checkpoint that was asked for."""

    __slots__ = ("_backend", "_give_up", "_ref", "id", "name")

    def __init__(self, backend: Backend, group: GroupRef, checkpoint: str, name: str, timeout: int) -> None:
        """Use `ReaderGroup.begin_checkpoint`."""
        self._backend = backend
        self._ref = group
        self._give_up = time.monotonic() + timeout / 1e6
        self.id = checkpoint
        self.name = name

    def result(self) -> Checkpoint:
        """Wait until it is complete, and return it; after its timeout it is given up, and nothing is left of it."""
        state = self._backend.groups.tend(self._ref)
        while True:
            for checkpoint in state.checkpoints:
                if checkpoint.id == self.id:
                    return checkpoint
            pending = state.pending
            is_pending = pending is not None and pending.id == self.id
            left = self._give_up - time.monotonic()
            if not is_pending or left <= 0:
                waits_for = sorted(pending.waits_for) if is_pending and pending is not None else []
                after = self._backend.groups.cancel_checkpoint(self._ref, self.id)
                if any(checkpoint.id == self.id for checkpoint in after.checkpoints):
                    state = after
                    continue
                raise self._failed(waits_for)
            wait = min(left, _LOOK_SECONDS)
            news = self._backend.news(Subscription(self._ref, state.version), wait)
            # Without news, time alone may have changed something: a reader that waits for its end has none.
            state = self._backend.groups.tend(self._ref) if news.state is None else news.state

    def _failed(self, waits_for: list[str]) -> CheckpointFailed:
        why = f"was not confirmed by {', '.join(waits_for)} in time" if waits_for else "was given up"
        return CheckpointFailed(
            f"The checkpoint {self.name!r} of the group {self._ref.name!r} {why}.",
            rule="Every living reader confirms when it reads or acknowledges; a reset ends a checkpoint.",
            remedy="Take it again, with a longer timeout; expel readers that hang.",
            group=self._ref.name,
            checkpoint=self.name,
            waits_for=waits_for,
        )


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
