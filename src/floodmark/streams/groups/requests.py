"""Requests about reader groups, and the answers to subscriptions. All of them can be sent as JSON values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark.progress import Snapshot
from floodmark.streams.groups.state import GroupState, SegmentRef, load_segment_refs
from floodmark.streams.layout.positions import Position, load_position, save_position


@dataclass(frozen=True, slots=True)
class GroupRef:
    """A reference to a group. `id` distinguishes it from a deleted group with the same name."""

    name: str
    id: int

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot("group-ref", name=self.name, id=self.id)

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "GroupRef":
        """Return the reference that `save` saved."""
        with open_snapshot(saved, "group-ref") as state:
            return cls(state["name"], state["id"])


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of a group in a stream: a cut or a time. Neither means the head, or no end.

    >>> Bound.load(Bound(time=100).save())
    Bound(cut=None, time=100, stream_id=None, places={}, since=None, lowers={})
    """

    cut: Position | None = None
    time: int | None = None
    stream_id: int | None = None
    """The stream that the cut was taken from, if known."""
    places: Mapping[str, int] = field(default_factory=dict)
    """Per time key the newest marks log entry that the cut has passed, if known."""
    since: int | None = None
    """Rows before this time are skipped."""
    lowers: Mapping[str, int] = field(default_factory=dict)
    """Per time key the watermark at its place, if known."""

    @property
    def is_open(self) -> bool:
        """Whether the bound is neither a cut nor a time."""
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
            lowers=dict(self.lowers),
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Bound":
        """Return the bound that `save` saved."""
        with open_snapshot(saved, "bound") as state:
            cut = state["cut"]
            return cls(
                cut=None if cut is None else load_position(cut),
                time=state["time"],
                stream_id=state["stream_id"],
                places=dict(state["places"]),
                since=state["since"],
                lowers=dict(state.get("lowers", {})),
            )


@dataclass(frozen=True, slots=True)
class StreamBounds:
    """The bounds of a group in a stream. `waits` allows times that the marks log has not reached yet.

    Without `key`, times belong to the default key of the stream.
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
        """Return the bounds that `save` saved."""
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
    """A request to create a group. The caller chooses the id, so that a retry is idempotent."""

    name: str
    id: int
    streams: tuple[StreamBounds, ...]

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot("new-group", name=self.name, id=self.id, streams=[bounds.save() for bounds in self.streams])

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "NewGroup":
        """Return the request that `save` saved."""
        with open_snapshot(saved, "new-group") as state:
            return cls(state["name"], state["id"], tuple(StreamBounds.load(bounds) for bounds in state["streams"]))


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a reader to its group: heartbeat, acknowledged offsets and released segments. Idempotent."""

    reader: str
    instance: str
    generation: int
    positions: Mapping[SegmentRef, int] = field(default_factory=dict)
    """The offsets that it has acknowledged."""
    released: frozenset[SegmentRef] = frozenset()
    """Segments that it releases at these offsets."""
    times: Mapping[SegmentRef, int] = field(default_factory=dict)
    """The event time of each segment; see `StreamProgress.times`."""
    places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Per (stream, key) the newest marks log entry that the group has passed, as far as the reader knows."""
    confirms: str | None = None
    """The id of the checkpoint that it confirms: its `on_checkpoint` callback has returned."""
    lowers: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The watermark at each place, unless all writers were closed or timed out there."""

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        return new_snapshot(
            "reader-report",
            reader=self.reader,
            instance=self.instance,
            generation=self.generation,
            positions=[[*ref, offset] for ref, offset in sorted(self.positions.items())],
            released=[list(ref) for ref in sorted(self.released)],
            times=[[*ref, time] for ref, time in sorted(self.times.items())],
            places=[[*place, seq] for place, seq in sorted(self.places.items())],
            confirms=self.confirms,
            lowers=[[*place, lower] for place, lower in sorted(self.lowers.items())],
        )

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Report":
        """Return the report that `save` saved."""
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
                lowers={(stream, key): lower for stream, key, lower in state.get("lowers", ())},
            )


@dataclass(frozen=True, slots=True)
class StreamSubscription:
    """The versions of a stream that a subscriber has seen; it waits for newer ones."""

    stream_id: int
    version: int
    """The version of the stream's definition: its settings, layout and sealed state. -1 if it was deleted."""
    ends: Mapping[int, int] = field(default_factory=dict)
    """The segments of interest, with the end offset that was seen."""
    marks: Mapping[str, int] = field(default_factory=dict)
    """The time keys of interest, with the last marks log entry that was seen; -1 if none was read yet."""

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
        """Return the subscription that `save` saved."""
        with open_snapshot(saved, "wanted-stream") as state:
            return cls(state["stream_id"], state["of"], load_position(state["ends"]), dict(state["marks"]))


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a reader has seen of its group and streams; it waits for changes. `version` is that of the group state."""

    group: GroupRef
    version: int
    streams: tuple[StreamSubscription, ...] = ()

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        streams = [stream.save() for stream in self.streams]
        return new_snapshot("wanted", group=self.group.save(), of=self.version, streams=streams)

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "Subscription":
        """Return the subscription that `save` saved."""
        with open_snapshot(saved, "wanted") as state:
            streams = tuple(StreamSubscription.load(stream) for stream in state["streams"])
            return cls(GroupRef.load(state["group"]), state["of"], streams)


@dataclass(frozen=True, slots=True)
class News:
    """The current versions of everything in a `Subscription`. `state` is set only if it is newer than the one seen.

    A stream that was deleted has the version -1.
    """

    streams: tuple[StreamSubscription, ...] = ()
    state: GroupState | None = None

    def is_new_to(self, subscription: Subscription) -> bool:
        """Return whether anything changed since the subscriber last looked."""
        if self.state is not None:
            return True
        for seen, now in zip(subscription.streams, self.streams, strict=True):
            if now.version != seen.version or dict(now.marks) != dict(seen.marks):
                return True
            if any(now.ends.get(number, offset) > offset for number, offset in seen.ends.items()):
                return True
        return False

    def save(self) -> Snapshot:
        """Return it as JSON values."""
        state = None if self.state is None else self.state.save()
        return new_snapshot("news", streams=[stream.save() for stream in self.streams], state=state)

    @classmethod
    def load(cls, saved: Mapping[str, Any]) -> "News":
        """Return the news that `save` saved."""
        with open_snapshot(saved, "news") as state:
            group = None if state["state"] is None else GroupState.load(state["state"])
            return cls(tuple(StreamSubscription.load(stream) for stream in state["streams"]), group)
