"""Reader groups: creating them, opening readers, checkpoints, resets, and why a group's window is where it is."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from floodmark._util.ints import check_int64
from floodmark._util.text import did_you_mean
from floodmark._util.times import Duration, duration_micros, time_text
from floodmark.errors import CheckpointFailed, CheckpointPending, ForeignCheckpoint, InvalidOption, UnknownReader
from floodmark.streams.definition import StreamInfo
from floodmark.streams.groups.bounds import parse_bounds
from floodmark.streams.groups.requests import Bound, GroupRef, NewGroup, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import (
    Checkpoint,
    GroupCut,
    GroupState,
    StreamProgress,
    check_group_name,
    find_group_stream,
)
from floodmark.streams.layout.layout import Layout
from floodmark.streams.layout.positions import Standing, compare_to_cut
from floodmark.streams.marks.windows import StreamWindow, TimeWindow
from floodmark.streams.ports import Backend
from floodmark.streams.readers.reader import Reader

GroupBounds = Any
"""The start or end of a group: a `GroupCut`, a `Checkpoint`, {stream: cut or time}, a time, or a cut of one stream."""

_POLL_SECONDS: Final = 0.5
_DEFAULT_MAX_ROWS: Final = 65_536


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
            remedy="Leave it out to wait until the marks log has reached the time.",
            option="after_last",
            value=after_last,
        )
    infos = [backend.catalog.find(stream) for stream in names]
    starts, ends = parse_bounds(start, infos), parse_bounds(end, infos)
    bounds = tuple(
        StreamBounds(stream, key, starts.get(stream, Bound()), ends.get(stream, Bound()), after_last == "wait")
        for stream in names
    )
    group = NewGroup(check_group_name("group", name), uuid.uuid4().int >> 66, bounds)
    return ReaderGroup(backend, backend.groups.create(group))


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a group: its reader, its position, and whether it holds the time window back."""

    segment: int
    reader: str | None
    offset: int
    time: int | None
    """The event time of this segment alone, for the time key of the group."""
    behind: int | None
    """How far `time` is below the newest watermark, in the unit of the stream."""
    moved_at: int | None
    """When its offset last moved, in microseconds by the clock of the store."""
    holds: bool
    is_finished: bool

    def __str__(self) -> str:
        """Return one line of text."""
        reader = "no reader" if self.reader is None else f"read by {self.reader}"
        if self.is_finished:
            reader = "finished"
        held = ", holds the window" if self.holds else ""
        time = "" if self.time is None else f", at the time {time_text(self.time)}"
        behind = f", {self.behind} behind" if self.behind else ""
        since = "" if self.moved_at is None else f", last moved at {time_text(self.moved_at)}"
        return f"segment {self.segment} at {self.offset}: {reader}{held}{time}{behind}{since}"


@dataclass(frozen=True, slots=True)
class GroupExplanation:
    """Why the time window of a group in one stream and key is where it is; `str()` gives it as text.

    `holders` are the segments that hold the window back, and `next_lower` is its lower bound once they move on.
    Without `next_lower` the group has passed every mark, and the stream's watermark holds it: see `Stream.why`.
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
    """The readers that have not confirmed the pending checkpoint."""

    def __str__(self) -> str:
        """Return a summary line, and one line for each segment."""
        where = "no window" if self.window is None else str(self.window)
        if self.holders:
            held = f", segments {', '.join(map(str, self.holders))} hold it"
            held += "" if self.next_lower is None else f" below {time_text(self.next_lower)}"
        else:
            held = ", every mark was passed"
        lines = [f"{self.group} in {self.stream} {self.key}: {where}{held}"]
        lines += [f"  {view}" for view in self.segments]
        lines.append(f"  readers: {', '.join(self.readers) or 'none'}")
        if self.pending_checkpoint is not None:
            lines.append(f"  the checkpoint {self.pending_checkpoint} waits for {', '.join(self.waits_for)}")
        return "\n".join(lines)


class ReaderGroup:
    """A named group of readers that divide the segments of one or more streams among them.

    Get one from `StreamHome.create_group` or `StreamHome.group`.

    >>> with connect() as home:
    ...     stream = home.create_stream("shop/tills", segments=2)
    ...     group = home.create_group("billing", "shop/tills")
    ...     with group.reader("r1") as first, group.reader("r2") as second:
    ...         print(group.readers())
    ...     print(group.cut())
    ('r1', 'r2')
    shop/tills at {0: 0, 1: 0}

    The home stores the position of the group, so reading continues where it stopped after a restart. The segments of a
    reader that leaves or dies go to the other readers, and a stream may be scaled while it is read.
    """

    __slots__ = ("_backend", "_ref")

    def __init__(self, backend: Backend, state: GroupState) -> None:
        """Use a `StreamHome`."""
        self._backend = backend
        self._ref = GroupRef(state.name, state.group_id)

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._ref.name

    @property
    def state(self) -> GroupState:
        """The current state of the group, after expelling readers whose ttl has passed."""
        return self._backend.groups.refresh(self._ref)

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams."""
        return self.state.streams

    @property
    def is_finished(self) -> bool:
        """Whether the group has read everything, up to its end or the end of its sealed streams."""
        return self.state.is_finished

    def readers(self) -> tuple[str, ...]:
        """Return the ids of the live readers."""
        return tuple(reader.id for reader in self.state.readers)

    def reader(
        self,
        id: str,  # noqa: A002
        *,
        ttl: Duration = "30 seconds",
        on_checkpoint: Callable[[str], object] | None = None,
        max_rows: int = _DEFAULT_MAX_ROWS,
    ) -> Reader:
        """Open a reader.

        Args:
            id: The id of the reader, unique among the live readers of the group.
            ttl: After this time without a heartbeat the reader is expelled and its segments go to others. A background
                thread sends the heartbeats.
            on_checkpoint: Called with the name of a checkpoint, in the reading thread, between two batches. State that
                the application stores under that name then matches exactly the events read before.
            max_rows: The maximum number of rows of a batch.
        """
        most = check_int64(max_rows, "max_rows")
        if most < 1:
            raise InvalidOption(
                f"max_rows is {most}.",
                rule="A batch has at least one row.",
                remedy=f"Pass 1 or more, or leave it out for {_DEFAULT_MAX_ROWS}.",
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
        """Remove a reader that is known to be dead, without waiting for its ttl."""
        state = self.state
        record = state.reader(reader)
        if record is None:
            ids = [member.id for member in state.readers]
            raise UnknownReader(
                f"The group {self.name!r} has no reader {reader!r}.",
                rule=f"Its readers are {', '.join(map(repr, ids)) or 'none'}.",
                remedy=did_you_mean(str(reader), ids, otherwise="Nothing to do if the reader has left already."),
                group=self.name,
                reader=reader,
            )
        self._backend.groups.expel(self._ref, reader, record.instance_id)

    def time_window(self, stream: str | None = None, key: str | None = None) -> TimeWindow | None:
        """Return the time window of the group, based on what its readers have reported; see `Reader.time_window`."""
        progress = self.state.progress_of(stream)
        info = find_group_stream(self._backend.catalog, progress)
        return self._window(progress, info, info.settings.key(key)).at(progress.position)

    def cut(self) -> GroupCut:
        """Return the position that the readers have reported, without waiting for them."""
        return self.state.cut

    def checkpoint(self, name: str | None = None, timeout: Duration = "30 seconds") -> Checkpoint:
        """Take a checkpoint: a cut at which every live reader is between two batches and has run `on_checkpoint`.

        Readers confirm when they call `read` or `acknowledge`. If one does neither before the timeout, the checkpoint
        is abandoned and `CheckpointFailed` is raised.

        Args:
            name: Passed to the `on_checkpoint` callbacks; a unique name if left out.
            timeout: How long to wait, also for another checkpoint of the group to end.
        """
        micros = duration_micros(timeout, "timeout", least=1)
        deadline = time.monotonic() + micros / 1e6
        while True:
            try:
                return self.begin_checkpoint(name, timeout).result()
            except CheckpointPending:
                # Another checkpoint is pending. It ends at its own timeout at the latest.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.01)

    def begin_checkpoint(self, name: str | None = None, timeout: Duration = "30 seconds") -> "CheckpointRequest":
        """Start a checkpoint without waiting for it; `CheckpointRequest.result` waits.

        Raises `CheckpointPending` while another checkpoint of the group is pending.

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
        checked_name = check_group_name("checkpoint", checkpoint if name is None else name)
        micros = duration_micros(timeout, "timeout", least=1)
        self._backend.groups.start_checkpoint(self._ref, checkpoint, checked_name, micros)
        return CheckpointRequest(self._backend, self._ref, checkpoint, checked_name, micros)

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """Return the newest completed checkpoints, oldest first."""
        return self.state.checkpoints

    def reset(self, to: GroupBounds) -> None:
        """Set the group to one of its checkpoints, a cut, or a time. Its readers are closed and must be opened again.

        Time windows start again at the new position. After a reset to a time, rows before that time are skipped.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/tills")
        ...     group = home.create_group("billing", "shop/tills")
        ...     group.reset({0: 5})
        Traceback (most recent call last):
        floodmark.errors.OffsetOutOfRange: The group would begin at offset 5 ... [offset-out-of-range]
        """
        if isinstance(to, Checkpoint) and (to.group, to.group_id) != (self.name, self._ref.id):
            raise ForeignCheckpoint(
                f"The checkpoint {to.name!r} belongs to another group, {to.group!r}.",
                rule="A group is reset to its own checkpoints; a re-created group is another group.",
                remedy="Pass checkpoint.cut to start at the same position.",
                group=self.name,
                checkpoint=to.name,
            )
        if to is None:
            raise InvalidOption(
                "reset() was called with None.",
                rule="A group is reset to a checkpoint, a cut or a time.",
                remedy="To start at the head, pass stream.head().",
                option="to",
                value=None,
            )
        state = self._backend.groups.find(self.name)
        infos = [find_group_stream(self._backend.catalog, progress) for progress in state.progress]
        starts = parse_bounds(to, infos)
        bounds = tuple(StreamBounds(stream, start=start) for stream, start in starts.items() if not start.is_open)
        self._backend.groups.reset(self._ref, uuid.uuid4().hex, bounds)

    def why(self, stream: str | None = None, key: str | None = None) -> GroupExplanation:
        """Return what holds the group's time window back: which segments, their readers, since when, and their lag.

        >>> with connect() as home:
        ...     stream = home.create_stream("shop/tills")
        ...     with stream.writer("till-3") as writer:
        ...         writer.write({"paid": 7})
        ...         outcome, entry = writer.note_time(1_000), stream.await_mark(1_000)
        ...     print(home.create_group("billing", "shop/tills").why())
        billing in shop/tills time: up to 1000, segments 0 hold it below 1000
          segment 0 at 0: no reader, holds the window
          readers: none
        """
        state = self.state
        progress = state.progress_of(stream)
        info = find_group_stream(self._backend.catalog, progress)
        time_key = info.settings.key(key)
        window = self._window(progress, info, time_key)
        return explain_group(state, progress, time_key, window.at(progress.position), window, info)

    def delete(self) -> None:
        """Delete the group. Its streams are not changed."""
        self._backend.groups.delete(self._ref)

    def _window(self, progress: StreamProgress, info: StreamInfo, key: str) -> StreamWindow:
        index, catalog = self._backend.marks(info, key), self._backend.catalog

        def layout(reads_again: bool) -> Layout:
            return (catalog.refresh(info) if reads_again else info).layout

        return StreamWindow(index, progress.places.get(key), layout, progress.lowers.get(key))

    def __repr__(self) -> str:
        return f"ReaderGroup({self.name!r})"


class CheckpointRequest:
    """A checkpoint that was started with `ReaderGroup.begin_checkpoint`."""

    __slots__ = ("_backend", "_deadline", "_ref", "id", "name")

    def __init__(self, backend: Backend, group: GroupRef, checkpoint: str, name: str, timeout: int) -> None:
        """Use `ReaderGroup.begin_checkpoint`."""
        self._backend = backend
        self._ref = group
        self._deadline = time.monotonic() + timeout / 1e6
        self.id = checkpoint
        self.name = name

    def result(self) -> Checkpoint:
        """Wait for the checkpoint and return it; abandon it after its timeout and raise `CheckpointFailed`."""
        state = self._backend.groups.refresh(self._ref)
        while True:
            for checkpoint in state.checkpoints:
                if checkpoint.id == self.id:
                    return checkpoint
            pending = state.pending
            is_pending = pending is not None and pending.id == self.id
            left = self._deadline - time.monotonic()
            if not is_pending or left <= 0:
                waits_for = sorted(pending.waits_for) if is_pending and pending is not None else []
                after = self._backend.groups.cancel_checkpoint(self._ref, self.id)
                if any(checkpoint.id == self.id for checkpoint in after.checkpoints):
                    state = after
                    continue
                raise self._failed(waits_for)
            wait = min(left, _POLL_SECONDS)
            news = self._backend.news(Subscription(self._ref, state.version), wait)
            # Without news, a refresh still expels dead readers that the checkpoint waits for.
            state = self._backend.groups.refresh(self._ref) if news.state is None else news.state

    def _failed(self, waits_for: list[str]) -> CheckpointFailed:
        why = f"was not confirmed by {', '.join(waits_for)} in time" if waits_for else "was abandoned"
        return CheckpointFailed(
            f"The checkpoint {self.name!r} of the group {self._ref.name!r} {why}.",
            rule="Every live reader confirms when it reads or acknowledges; a reset of the group ends a checkpoint.",
            remedy="Take it again with a longer timeout; remove readers that hang with group.expel(id).",
            group=self._ref.name,
            checkpoint=self.name,
            waits_for=waits_for,
        )


def explain_group(
    state: GroupState,
    progress: StreamProgress,
    key: str,
    time_window: TimeWindow | None,
    window: StreamWindow,
    stream: StreamInfo,
) -> GroupExplanation:
    """Return why the time window of a group in one stream and key is where it is."""
    numbers = window.marks.numbers()
    next_number = numbers.start if window.place is None else window.place + 1
    entry = window.marks.entry_from(next_number) if next_number in numbers else None
    newest = window.marks.entry_from(numbers[-1]).lower if numbers else None
    views = []
    for segment, offset in sorted(progress.position.items()):
        owner = state.owner((progress.name, segment))
        time = progress.times.get(segment) if key == progress.key else None
        holds = entry is not None and compare_to_cut(stream.layout, {segment: offset}, entry.cut) is not Standing.PASSED
        views.append(
            SegmentView(
                segment=segment,
                reader=None if owner is None else owner.id,
                offset=offset,
                time=time,
                behind=None if time is None or newest is None else max(0, newest - time),
                moved_at=progress.moved.get(segment),
                holds=holds,
                is_finished=segment in progress.finished,
            )
        )
    pending = state.pending
    return GroupExplanation(
        group=state.name,
        stream=progress.name,
        key=key,
        window=time_window,
        next_lower=None if entry is None else entry.lower,
        holders=tuple(view.segment for view in views if view.holds),
        segments=tuple(views),
        readers=tuple(reader.id for reader in state.readers),
        unassigned=tuple(sorted(number for name, number in state.unassigned() if name == progress.name)),
        pending_checkpoint=None if pending is None else pending.name,
        waits_for=() if pending is None else tuple(sorted(pending.waits_for)),
    )
