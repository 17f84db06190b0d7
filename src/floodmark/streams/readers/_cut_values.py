"""Cuts and checkpoints of a group: where it is in each of its streams, and in their marks logs. They can be kept."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floodmark._util.codec import new_snapshot, open_snapshot
from floodmark.errors import StreamNotInGroup
from floodmark.progress import Snapshot
from floodmark.streams._positions import Position, load_position, save_position


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
