"""What is asked of a home about groups. Everything here can cross a wire: it saves itself as JSON values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark.progress import Snapshot
from floodmark.streams.groups.state import GroupState, SegmentRef, load_segment_refs
from floodmark.streams.layout.positions import Position, load_position, save_position


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A group. `id` tells it from another one that had its name before."""

    name: str
    id: int

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot("group-ref", name=self.name, id=self.id)

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "GroupRef":
        """Return the reference that was saved."""
        with open_snapshot(saved, "group-ref") as state:
            return cls(state["name"], state["id"])


@dataclass(frozen=True, slots=True)
class Bound:
    """A place in a stream to begin or end at: a cut, or a time; neither is the head, or no end.

    >>> Bound.load(Bound(time=100).save())
    Bound(cut=None, time=100, stream_id=None, places={}, since=None)
    """

    cut: Position | None = None
    time: int | None = None
    stream_id: int | None = None
    """The stream that a cut was taken from, where that is known."""
    places: Mapping[str, int] = field(default_factory=dict)
    """The place of a cut in the marks logs, where that is known."""
    since: int | None = None
    """Rows before this time are left out."""

    @property
    def is_open(self) -> bool:
        """Whether it is neither a cut nor a time."""
        return self.cut is None and self.time is None

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "bound",
            cut=None if self.cut is None else save_position(self.cut),
            time=self.time,
            stream_id=self.stream_id,
            places=dict(self.places),
            since=self.since,
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Bound":
        """Return the bound that was saved."""
        with open_snapshot(saved, "bound") as state:
            cut = state["cut"]
            return cls(
                cut=None if cut is None else load_position(cut),
                time=state["time"],
                stream_id=state["stream_id"],
                places=dict(state["places"]),
                since=state["since"],
            )


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """What a group is to read of a stream; `waits` says whether times may be ones that the marks log has yet to reach.

    Without a key, times are of the default key of the stream.
    """

    stream: str
    key: str | None = None
    start: Bound = Bound()
    end: Bound = Bound()
    waits: bool = True

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "stream-bounds",
            stream=self.stream,
            key=self.key,
            start=self.start.save(),
            end=self.end.save(),
            waits=self.waits,
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamBounds":
        """Return the bounds that were saved."""
        with open_snapshot(saved, "stream-bounds") as state:
            return cls(
                stream=state["stream"],
                key=state["key"],
                start=Bound.load(state["start"]),
                end=Bound.load(state["end"]),
                waits=state["waits"],
            )


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group to be created. Its id is made by who asks: asked for twice, it is created once."""

    name: str
    id: int
    streams: tuple[StreamBounds, ...]

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot("new-group", name=self.name, id=self.id, streams=[one.save() for one in self.streams])

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "NewGroup":
        """Return the group that was saved."""
        with open_snapshot(saved, "new-group") as state:
            return cls(state["name"], state["id"], tuple(StreamBounds.load(one) for one in state["streams"]))


@dataclass(frozen=True, slots=True)
class Report:
    """What a reader says of itself. To say it twice changes nothing."""

    reader: str
    instance: str
    generation: int
    positions: Mapping[SegmentRef, int] = field(default_factory=dict)
    """How far it has acknowledged its segments."""
    released: frozenset[SegmentRef] = frozenset()
    """Segments that it gives back at these positions."""
    times: Mapping[SegmentRef, int] = field(default_factory=dict)
    """The time of segments: see `StreamPart.times`."""
    places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """For streams and keys the newest entry of the marks log that the group has passed by what the reader knows."""
    confirms: str | None = None
    """The checkpoint, by its id, whose name it has told its application."""

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "reader-report",
            reader=self.reader,
            instance=self.instance,
            generation=self.generation,
            positions=[[*share, offset] for share, offset in sorted(self.positions.items())],
            released=[list(share) for share in sorted(self.released)],
            times=[[*share, time] for share, time in sorted(self.times.items())],
            places=[[*place, seq] for place, seq in sorted(self.places.items())],
            confirms=self.confirms,
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Report":
        """Return the report that was saved."""
        with open_snapshot(saved, "reader-report") as state:
            return cls(
                reader=state["reader"],
                instance=state["instance"],
                generation=state["generation"],
                positions={(stream, number): offset for stream, number, offset in state["positions"]},
                released=load_segment_refs(state["released"]),
                times={(stream, number): time for stream, number, time in state["times"]},
                places={(stream, key): seq for stream, key, seq in state["places"]},
                confirms=state["confirms"],
            )


@dataclass(frozen=True, slots=True)
class StreamSubscription:
    """What somebody knows of a stream, and waits for more of."""

    stream_id: int
    version: int
    """The version of the stream itself: its settings, layout and state."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """Segments, and up to where they are known."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """Time keys, and the last entry of the marks log that is known; -1 if none was ever asked for."""

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "wanted-stream",
            stream_id=self.stream_id,
            of=self.version,
            ends=save_position(self.ends),
            marks=dict(self.marks),
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "StreamSubscription":
        """Return what was saved."""
        with open_snapshot(saved, "wanted-stream") as state:
            return cls(state["stream_id"], state["of"], load_position(state["ends"]), dict(state["marks"]))


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a reader knows, and waits for more of. `version` is that of the group's state."""

    group: GroupRef
    version: int
    streams: tuple[StreamSubscription, ...] = ()

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        streams = [stream.save() for stream in self.streams]
        return new_snapshot("wanted", group=self.group.save(), of=self.version, streams=streams)

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Subscription":
        """Return what was saved."""
        with open_snapshot(saved, "wanted") as state:
            streams = tuple(StreamSubscription.load(stream) for stream in state["streams"])
            return cls(GroupRef.load(state["group"]), state["of"], streams)


@dataclass(frozen=True, slots=True)
class News:
    """What holds now of all that was wanted; `state` only if it is newer than the one that is known.

    A stream that is gone has the version -1.
    """

    streams: tuple[StreamSubscription, ...] = ()
    state: GroupState | None = None

    def is_new_to(self, wanted: Subscription) -> bool:
        """Return whether anything is newer than what is known."""
        if self.state is not None:
            return True
        for known, now in zip(wanted.streams, self.streams, strict=True):
            if now.version != known.version or dict(now.marks) != dict(known.marks):
                return True
            if any(now.ends.get(number, offset) > offset for number, offset in known.ends.items()):
                return True
        return False

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        state = None if self.state is None else self.state.save()
        return new_snapshot("news", streams=[stream.save() for stream in self.streams], state=state)

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "News":
        """Return the news that were saved."""
        with open_snapshot(saved, "news") as state:
            group = None if state["state"] is None else GroupState.load(state["state"])
            return cls(tuple(StreamSubscription.load(stream) for stream in state["streams"]), group)
