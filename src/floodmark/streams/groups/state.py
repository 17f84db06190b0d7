"""The stored state of a reader group: its progress in each stream, its readers, cuts and checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Protocol

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidName, StreamDeleted, StreamNotInGroup, UnknownStream
from floodmark.progress import Snapshot
from floodmark.streams.definition import StreamInfo
from floodmark.streams.layout.positions import Position, load_position, save_position


@dataclass(frozen=True, slots=True)
class StreamCut:
    """The position of a group in one stream: a cut, and per time key the newest marks log entry it has passed.

    >>> print(StreamCut("shop/orders", 7, {0: 20}, {"at": 3}))
    shop/orders at {0: 20}, past the mark 3 of at
    """

    stream: str
    stream_id: int
    """Identifies the stream, since a deleted and re-created stream has the same name."""
    cut: Position
    places: Mapping[str, int]
    since: int | None = None
    """Rows before this time are skipped, if set."""
    lowers: Mapping[str, int] = field(default_factory=dict)
    """Per time key the watermark at its place, which holds there even if retention deletes the entry."""

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "stream-cut",
            stream=self.stream,
            stream_id=self.stream_id,
            cut=save_position(self.cut),
            places=dict(self.places),
            since=self.since,
            lowers=dict(self.lowers),
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamCut":
        """Return the cut that `save` saved."""
        with open_snapshot(saved, "stream-cut") as state:
            return cls(
                stream=state["stream"],
                stream_id=state["stream_id"],
                cut=load_position(state["cut"]),
                places=dict(state["places"]),
                since=state["since"],
                # Earlier releases did not store it.
                lowers=dict(state.get("lowers", {})),
            )

    def __str__(self) -> str:
        """Return it as one line of text."""
        marks = "".join(f", past the mark {seq} of {key}" for key, seq in sorted(self.places.items()))
        since = "" if self.since is None else f", from the time {self.since} on"
        return f"{self.stream} at {dict(self.cut)}{marks}{since}"


@dataclass(frozen=True, slots=True)
class GroupCut:
    """The position of a group in all its streams.

    >>> cut = GroupCut((StreamCut("shop/orders", 7, {0: 20}, {}),))
    >>> GroupCut.load(cut.save()) == cut
    True
    >>> cut["shop/orders"].cut
    {0: 20}
    """

    cuts: tuple[StreamCut, ...]

    def __getitem__(self, stream: str) -> StreamCut:
        for cut in self.cuts:
            if cut.stream == stream:
                return cut
        raise StreamNotInGroup(
            f"The cut does not include the stream {stream!r}.",
            rule=f"It includes {', '.join(repr(cut.stream) for cut in self.cuts)}.",
            remedy="Use one of these names.",
            stream=stream,
        )

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot("group-cut", cuts=[cut.save() for cut in self.cuts])

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "GroupCut":
        """Return the cut that `save` saved."""
        with open_snapshot(saved, "group-cut") as state:
            return cls(tuple(StreamCut.load(cut) for cut in state["cuts"]))

    def __str__(self) -> str:
        """Return it as one line of text."""
        return "; ".join(map(str, self.cuts))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A cut at which every live reader of a group was between two batches.

    The `confirmed` readers confirmed the checkpoint. The `missing` readers left or died before they could: the cut has
    what they acknowledged, and their applications may have stored nothing under the checkpoint's name.

    >>> cut = GroupCut((StreamCut("shop/orders", 7, {0: 20}, {}),))
    >>> checkpoint = Checkpoint("f00d", "noon", "billing", 5, cut, at=60, confirmed=("r1",))
    >>> Checkpoint.load(checkpoint.save()) == checkpoint
    True
    >>> print(checkpoint)
    noon of billing: shop/orders at {0: 20}
    """

    id: str
    name: str
    group: str
    group_id: int
    cut: GroupCut
    at: int
    """When the checkpoint was completed, by the clock of the store."""
    confirmed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "checkpoint",
            id=self.id,
            name=self.name,
            group=self.group,
            group_id=self.group_id,
            cut=self.cut.save(),
            at=self.at,
            confirmed=list(self.confirmed),
            missing=list(self.missing),
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Checkpoint":
        """Return the checkpoint that `save` saved."""
        with open_snapshot(saved, "checkpoint") as state:
            return cls(
                id=state["id"],
                name=state["name"],
                group=state["group"],
                group_id=state["group_id"],
                cut=GroupCut.load(state["cut"]),
                at=state["at"],
                confirmed=tuple(state["confirmed"]),
                missing=tuple(state["missing"]),
            )

    def __str__(self) -> str:
        """Return it as one line of text."""
        missing = f" (without {', '.join(self.missing)})" if self.missing else ""
        return f"{self.name} of {self.group}{missing}: {self.cut}"


SegmentRef = tuple[str, int]
"""(stream, segment): the unit of assignment. At most one reader reads it at a time."""


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The progress of a group in one stream. `position` is always a cut."""

    name: str
    stream_id: int
    key: str
    """The time key of `times`, `since` and `until`, and of the group's lag."""
    position: Position
    """The acknowledged offset of each segment that the group reads. It never goes back, except by a reset."""
    places: Mapping[str, int] = field(default_factory=dict)
    """For each time key the number of the newest marks log entry that was passed."""
    finished: frozenset[int] = frozenset()
    """Segments of the position that are read to their end."""
    times: Mapping[int, int] = field(default_factory=dict)
    """For each segment the `lower` of the newest marks log entry that this segment alone has passed."""
    moved: Mapping[int, int] = field(default_factory=dict)
    """When the offset of each segment last moved, by the clock of the store."""
    end: Position | None = None
    """The cut at which the group stops, if any."""
    since: int | None = None
    """Rows before this time are skipped."""
    until: int | None = None
    """Rows from this time on are skipped. `end` is derived from it once the marks log has reached it."""
    lowers: Mapping[str, int] = field(default_factory=dict)
    """For each time key the watermark at its place; none where all writers were closed or timed out."""

    @property
    def is_finished(self) -> bool:
        """Whether everything was read and nothing can follow."""
        return self.finished.issuperset(self.position)

    @property
    def cut(self) -> StreamCut:
        """The position of the group in the stream."""
        places, lowers = dict(self.places), dict(self.lowers)
        return StreamCut(self.name, self.stream_id, dict(self.position), places, self.since, lowers)

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "group-stream",
            name=self.name,
            stream_id=self.stream_id,
            key=self.key,
            position=save_position(self.position),
            places=dict(self.places),
            finished=sorted(self.finished),
            times=save_position(self.times),
            moved=save_position(self.moved),
            end=None if self.end is None else save_position(self.end),
            since=self.since,
            until=self.until,
            lowers=dict(self.lowers),
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamProgress":
        """Return the progress that `save` saved."""
        with open_snapshot(saved, "group-stream") as state:
            return cls(
                name=state["name"],
                stream_id=state["stream_id"],
                key=state["key"],
                position=load_position(state["position"]),
                places=dict(state["places"]),
                finished=frozenset(state["finished"]),
                times=load_position(state["times"]),
                moved=load_position(state["moved"]),
                end=None if state["end"] is None else load_position(state["end"]),
                since=state["since"],
                until=state["until"],
                # Earlier releases did not store it.
                lowers=dict(state.get("lowers", {})),
            )


def instance_id(instance: str) -> str:
    """Return the public id of a reader's instance, from which the instance cannot be derived.

    An instance is a random text that only its reader knows: a report with it comes from this reader. A group stores and
    shows the id instead, so that no other reader of the group can act as this one.

    >>> instance_id("0123456789abcdef")
    '9f9f5111f7b27a781f1f1ddde5ebc2dd'
    """
    return sha256(instance.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ReaderRecord:
    """A reader of the group. `instance_id` distinguishes it from earlier readers with the same id."""

    id: str
    instance_id: str
    ttl: int
    """The reader is expelled after this many microseconds without a heartbeat."""
    beat_at: int
    """When its last heartbeat arrived, by the clock of the store."""
    segments: frozenset[SegmentRef] = frozenset()
    """The segments that are assigned to it."""
    releasing: frozenset[SegmentRef] = frozenset()
    """Those of its segments that it is asked to release."""

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "group-reader",
            id=self.id,
            instance_id=self.instance_id,
            ttl=self.ttl,
            beat_at=self.beat_at,
            shares=[list(ref) for ref in sorted(self.segments)],
            giving=[list(ref) for ref in sorted(self.releasing)],
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "ReaderRecord":
        """Return the reader that `save` saved."""
        with open_snapshot(saved, "group-reader") as state:
            return cls(
                id=state["id"],
                # Earlier releases stored the instance itself.
                instance_id=state["instance_id"] if "instance_id" in state else instance_id(state["instance"]),
                ttl=state["ttl"],
                beat_at=state["beat_at"],
                segments=load_segment_refs(state["shares"]),
                releasing=load_segment_refs(state["giving"]),
            )


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that waits for readers to confirm. It has its own positions, fixed per reader on confirmation."""

    id: str
    name: str
    begun_at: int
    deadline: int
    """When the checkpoint is abandoned, by the clock of the store."""
    progress: tuple[StreamProgress, ...]
    waits_for: frozenset[str]
    confirmed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "pending-checkpoint",
            id=self.id,
            name=self.name,
            begun_at=self.begun_at,
            deadline=self.deadline,
            parts=[progress.save() for progress in self.progress],
            waits_for=sorted(self.waits_for),
            confirmed=list(self.confirmed),
            missing=list(self.missing),
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "PendingCheckpoint":
        """Return the checkpoint that `save` saved."""
        with open_snapshot(saved, "pending-checkpoint") as state:
            return cls(
                id=state["id"],
                name=state["name"],
                begun_at=state["begun_at"],
                deadline=state["deadline"],
                progress=tuple(StreamProgress.load(progress) for progress in state["parts"]),
                waits_for=frozenset(state["waits_for"]),
                confirmed=tuple(state["confirmed"]),
                missing=tuple(state["missing"]),
            )


@dataclass(frozen=True, slots=True)
class GroupState:
    """The stored state of a group. It is immutable; each change makes a new state with the next `version`.

    >>> progress = StreamProgress("shop/orders", 7, "at", {0: 0, 1: 0})
    >>> state = GroupState("billing", 5, (progress,), created_at=0)
    >>> GroupState.load(state.save()) == state
    True
    >>> sorted(state.unassigned())
    [('shop/orders', 0), ('shop/orders', 1)]
    """

    name: str
    group_id: int
    progress: tuple[StreamProgress, ...]
    created_at: int
    readers: tuple[ReaderRecord, ...] = ()
    generation: int = 1
    """Incremented by each reset; readers of an earlier generation are fenced."""
    version: int = 1
    pending: PendingCheckpoint | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    """The newest completed checkpoints, oldest first."""
    reset_id: str | None = None
    """The id of the last reset, which makes a retried reset idempotent."""

    @property
    def is_finished(self) -> bool:
        """Whether all streams are read to their end and nothing can follow."""
        return all(progress.is_finished for progress in self.progress)

    @property
    def cut(self) -> GroupCut:
        """The position of the group in all its streams."""
        return GroupCut(tuple(progress.cut for progress in self.progress))

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams."""
        return tuple(progress.name for progress in self.progress)

    def progress_of(self, stream: str | None) -> StreamProgress:
        """Return the progress in a stream. The name may be None if the group has one stream."""
        if stream is None and len(self.progress) == 1:
            return self.progress[0]
        for progress in self.progress:
            if progress.name == stream:
                return progress
        fact = "No stream was named" if stream is None else f"The group {self.name!r} does not read {stream!r}"
        raise StreamNotInGroup(
            f"{fact}.",
            rule=f"Its streams are {', '.join(map(repr, self.streams))}.",
            remedy=did_you_mean(str(stream), self.streams, otherwise="Pass one of these names."),
            group=self.name,
            stream=stream,
        )

    def reader(self, reader: str) -> ReaderRecord | None:
        """Return the reader with an id, or None."""
        return next((record for record in self.readers if record.id == reader), None)

    def owner(self, ref: SegmentRef) -> ReaderRecord | None:
        """Return the reader that a segment is assigned to, or None."""
        return next((record for record in self.readers if ref in record.segments), None)

    def unfinished(self) -> set[SegmentRef]:
        """Return the segments that are not read to their end."""
        return {
            (progress.name, number)
            for progress in self.progress
            for number in progress.position
            if number not in progress.finished
        }

    def unassigned(self) -> set[SegmentRef]:
        """Return the unfinished segments that no reader has."""
        return self.unfinished().difference(*(reader.segments for reader in self.readers))

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "reader-group",
            name=self.name,
            group_id=self.group_id,
            parts=[progress.save() for progress in self.progress],
            created_at=self.created_at,
            readers=[reader.save() for reader in self.readers],
            generation=self.generation,
            count=self.version,
            pending=None if self.pending is None else self.pending.save(),
            checkpoints=[checkpoint.save() for checkpoint in self.checkpoints],
            reset_id=self.reset_id,
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "GroupState":
        """Return the state that `save` saved."""
        with open_snapshot(saved, "reader-group") as state:
            return cls(
                name=state["name"],
                group_id=state["group_id"],
                progress=tuple(StreamProgress.load(progress) for progress in state["parts"]),
                created_at=state["created_at"],
                readers=tuple(ReaderRecord.load(reader) for reader in state["readers"]),
                generation=state["generation"],
                version=state["count"],
                pending=None if state["pending"] is None else PendingCheckpoint.load(state["pending"]),
                checkpoints=tuple(Checkpoint.load(checkpoint) for checkpoint in state["checkpoints"]),
                reset_id=state["reset_id"],
            )


def load_segment_refs(saved: object) -> frozenset[SegmentRef]:
    """Return the segments that were saved as [stream, segment] pairs."""
    return frozenset((stream, int(number)) for stream, number in saved)  # type: ignore[attr-defined]


class StreamFinder(Protocol):
    """A catalog of streams."""

    def find(self, name: str) -> StreamInfo:
        """Return the stream with a name, or raise `UnknownStream`."""


def find_group_stream(catalog: StreamFinder, progress: StreamProgress) -> StreamInfo:
    """Return the stream that a group reads, or raise `StreamDeleted`."""
    try:
        stream = catalog.find(progress.name)
        is_recreated = stream.id != progress.stream_id
    except UnknownStream:
        is_recreated = False
    else:
        if not is_recreated:
            return stream
    raise StreamDeleted(
        f"The stream {progress.name!r} was deleted{' and created again' if is_recreated else ''}.",
        rule="A group reads the stream that it was created on.",
        remedy="Delete the group and create one on the new stream." if is_recreated else "Delete the group.",
        stream=progress.name,
        created_anew=is_recreated,
    )


_LONGEST_NAME: Final = 200


def check_group_name(what: str, name: object) -> str:
    """Return `name` if it is valid for a group, a reader or a checkpoint; else raise `InvalidName`.

    >>> check_group_name("group", "billing")
    'billing'
    >>> check_group_name("reader", "")
    Traceback (most recent call last):
    floodmark.errors.InvalidName: The name of the reader is ''. ... [invalid-name]
    """
    if isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and name.isprintable():
        return name
    raise InvalidName(
        f"The name of the {what} is {name!r}.",
        rule=f"It is printable text of at most {_LONGEST_NAME} characters.",
        remedy="Use for example 'billing'.",
        what=what,
        name=name,
    )
