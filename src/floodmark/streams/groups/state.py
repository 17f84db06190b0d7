"""What is kept of a reader group: how far it is in its streams, who reads what, its cuts and checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidName, StreamDeleted, StreamNotInGroup, UnknownStream
from floodmark.progress import Snapshot
from floodmark.streams.definition import StreamInfo
from floodmark.streams.layout.positions import Position, load_position, save_position


@dataclass(frozen=True, slots=True)
class StreamCut:
    """Where a group is in one stream: a cut, and for each time key the newest entry of the marks log it has passed.

    >>> print(StreamCut("shop/orders", 7, {0: 20}, {"at": 3}))
    shop/orders at {0: 20}, past the mark 3 of at
    """

    stream: str
    stream_id: int
    """It tells a stream from another one that has had its name."""
    cut: Position
    places: Mapping[str, int]
    since: int | None = None
    """Rows before this time are left out, if it is set."""

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "stream-cut",
            stream=self.stream,
            stream_id=self.stream_id,
            cut=save_position(self.cut),
            places=dict(self.places),
            since=self.since,
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamCut":
        """Return the cut that was saved."""
        with open_snapshot(saved, "stream-cut") as state:
            return cls(
                stream=state["stream"],
                stream_id=state["stream_id"],
                cut=load_position(state["cut"]),
                places=dict(state["places"]),
                since=state["since"],
            )

    def __str__(self) -> str:
        """Return it in one line."""
        marks = "".join(f", past the mark {seq} of {key}" for key, seq in sorted(self.places.items()))
        since = "" if self.since is None else f", from the time {self.since} on"
        return f"{self.stream} at {dict(self.cut)}{marks}{since}"


@dataclass(frozen=True, slots=True)
class GroupCut:
    """Where a group is in all its streams.

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
            f"The cut has nothing of the stream {stream!r}.",
            rule=f"It has {', '.join(repr(cut.stream) for cut in self.cuts)}.",
            remedy="Name one of them.",
            stream=stream,
        )

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot("group-cut", cuts=[cut.save() for cut in self.cuts])

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "GroupCut":
        """Return the cut that was saved."""
        with open_snapshot(saved, "group-cut") as state:
            return cls(tuple(StreamCut.load(cut) for cut in state["cuts"]))

    def __str__(self) -> str:
        """Return it in one line."""
        return "; ".join(map(str, self.cuts))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A cut at which every living reader of a group was between two batches.

    `confirmed` have said so themselves. `missing` went before they could; for them the cut has what they had
    acknowledged, and nothing that they might have kept under the name of the checkpoint.

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
    """When it was complete, by the clock of the store."""
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
        """Return the checkpoint that was saved."""
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
        """Return it in one line."""
        gone = f" (without {', '.join(self.missing)})" if self.missing else ""
        return f"{self.name} of {self.group}{gone}: {self.cut}"


SegmentRef = tuple[str, int]
"""A segment of a stream of the group: what one reader at a time reads."""


@dataclass(frozen=True, slots=True)
class StreamPart:
    """How far the group is in one stream. `position` has every segment that is open to the group, and is a cut."""

    name: str
    stream_id: int
    key: str
    """The time key by which the group measures how far behind it is, and that its times are of."""
    position: Position
    """What was acknowledged; it only moves on, except by a reset."""
    places: Mapping[str, int] = field(default_factory=dict)
    """For each time key the number of the newest entry of the marks log that was passed."""
    finished: frozenset[int] = frozenset()
    """Segments of the position of which nothing is left to read."""
    times: Mapping[int, int] = field(default_factory=dict)
    """The `lower` of the newest entry that a segment, taken alone, has passed."""
    moved: Mapping[int, int] = field(default_factory=dict)
    """When the position in a segment last moved, by the clock of the store."""
    end: Position | None = None
    """The cut at which the group ends."""
    since: int | None = None
    """Rows before this time are left out."""
    until: int | None = None
    """Rows from this time on are left out; `end` follows from it when the marks log has come there."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to read, now and ever."""
        return self.finished.issuperset(self.position)

    @property
    def cut(self) -> StreamCut:
        """Where the group is in the stream."""
        return StreamCut(self.name, self.stream_id, dict(self.position), dict(self.places), self.since)

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
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamPart":
        """Return the part that was saved."""
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
            )


@dataclass(frozen=True, slots=True)
class ReaderRecord:
    """A reader of the group. `instance` tells it from another one that had its id before."""

    id: str
    instance: str
    ttl: int
    """For how many microseconds it may be silent."""
    beat_at: int
    """When it was last heard, by the clock of the store."""
    shares: frozenset[SegmentRef] = frozenset()
    """The segments that it reads."""
    giving: frozenset[SegmentRef] = frozenset()
    """Those of them that it is asked to give back."""

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "group-reader",
            id=self.id,
            instance=self.instance,
            ttl=self.ttl,
            beat_at=self.beat_at,
            shares=[list(share) for share in sorted(self.shares)],
            giving=[list(share) for share in sorted(self.giving)],
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "ReaderRecord":
        """Return the reader that was saved."""
        with open_snapshot(saved, "group-reader") as state:
            return cls(
                id=state["id"],
                instance=state["instance"],
                ttl=state["ttl"],
                beat_at=state["beat_at"],
                shares=load_segment_refs(state["shares"]),
                giving=load_segment_refs(state["giving"]),
            )


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that waits for readers. It has positions of its own, which stand still once a reader confirmed."""

    id: str
    name: str
    begun_at: int
    deadline: int
    """When it is given up, by the clock of the store."""
    parts: tuple[StreamPart, ...]
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
            parts=[part.save() for part in self.parts],
            waits_for=sorted(self.waits_for),
            confirmed=list(self.confirmed),
            missing=list(self.missing),
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "PendingCheckpoint":
        """Return the checkpoint that was saved."""
        with open_snapshot(saved, "pending-checkpoint") as state:
            return cls(
                id=state["id"],
                name=state["name"],
                begun_at=state["begun_at"],
                deadline=state["deadline"],
                parts=tuple(StreamPart.load(part) for part in state["parts"]),
                waits_for=frozenset(state["waits_for"]),
                confirmed=tuple(state["confirmed"]),
                missing=tuple(state["missing"]),
            )


@dataclass(frozen=True, slots=True)
class GroupState:
    """All that is kept of a group. It changes from one state to the next, never in place; `version` counts that.

    >>> part = StreamPart("shop/orders", 7, "at", {0: 0, 1: 0})
    >>> state = GroupState("billing", 5, (part,), created_at=0)
    >>> GroupState.load(state.save()) == state
    True
    >>> sorted(state.unassigned())
    [('shop/orders', 0), ('shop/orders', 1)]
    """

    name: str
    group_id: int
    parts: tuple[StreamPart, ...]
    created_at: int
    readers: tuple[ReaderRecord, ...] = ()
    generation: int = 1
    """How often it was set to a place; what was opened in an earlier generation does not go on."""
    version: int = 1
    pending: PendingCheckpoint | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    """The newest ones that are complete, the last one last."""
    reset_id: str | None = None
    """Which reset was the last, so that one that is asked for twice is done once."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to read in any stream, now and ever."""
        return all(part.is_finished for part in self.parts)

    @property
    def cut(self) -> GroupCut:
        """Where the group is."""
        return GroupCut(tuple(part.cut for part in self.parts))

    @property
    def streams(self) -> tuple[str, ...]:
        """The names of its streams."""
        return tuple(part.name for part in self.parts)

    def part(self, stream: str | None) -> StreamPart:
        """Return how far it is in a stream; the name may be left out when the group has one stream."""
        if stream is None and len(self.parts) == 1:
            return self.parts[0]
        for part in self.parts:
            if part.name == stream:
                return part
        fact = "No stream is named" if stream is None else f"The group {self.name!r} does not read {stream!r}"
        raise StreamNotInGroup(
            f"{fact}.",
            rule=f"Its streams are {', '.join(map(repr, self.streams))}.",
            remedy=did_you_mean(str(stream), self.streams, otherwise="Name one of them."),
            group=self.name,
            stream=stream,
        )

    def reader(self, reader: str) -> ReaderRecord | None:
        """Return the reader of an id, if it is there."""
        return next((one for one in self.readers if one.id == reader), None)

    def owner(self, share: SegmentRef) -> ReaderRecord | None:
        """Return who reads a segment."""
        return next((one for one in self.readers if share in one.shares), None)

    def unassigned(self) -> set[SegmentRef]:
        """Return the segments that could be read, and that nobody reads."""
        free = {(part.name, number) for part in self.parts for number in part.position if number not in part.finished}
        return free.difference(*(reader.shares for reader in self.readers))

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "reader-group",
            name=self.name,
            group_id=self.group_id,
            parts=[part.save() for part in self.parts],
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
        """Return the state that was saved."""
        with open_snapshot(saved, "reader-group") as state:
            return cls(
                name=state["name"],
                group_id=state["group_id"],
                parts=tuple(StreamPart.load(part) for part in state["parts"]),
                created_at=state["created_at"],
                readers=tuple(ReaderRecord.load(reader) for reader in state["readers"]),
                generation=state["generation"],
                version=state["count"],
                pending=None if state["pending"] is None else PendingCheckpoint.load(state["pending"]),
                checkpoints=tuple(Checkpoint.load(checkpoint) for checkpoint in state["checkpoints"]),
                reset_id=state["reset_id"],
            )


def load_segment_refs(saved: object) -> frozenset[SegmentRef]:
    """Return segments that were saved as [stream, segment]."""
    return frozenset((stream, int(number)) for stream, number in saved)  # type: ignore[attr-defined]


class StreamFinder(Protocol):
    """A catalog."""

    def find(self, name: str) -> StreamInfo:
        """Return the stream of a name."""


def find_group_stream(catalog: StreamFinder, part: StreamPart) -> StreamInfo:
    """Return the stream that a group reads, or say that it is gone."""
    try:
        found = catalog.find(part.name)
        is_anew = found.id != part.stream_id
    except UnknownStream:
        is_anew = False
    else:
        if not is_anew:
            return found
    raise StreamDeleted(
        f"The stream {part.name!r} was deleted{', and created anew' if is_anew else ''}.",
        rule="A group reads the stream that it was created on.",
        remedy="Delete the group, and create one on the new stream." if is_anew else "Delete the group.",
        stream=part.name,
        created_anew=is_anew,
    )


_LONGEST_NAME: Final = 200


def check_group_name(what: str, name: object) -> str:
    """Return `name` if a group, a reader or a checkpoint may have it.

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
