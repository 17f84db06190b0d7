"""What requests about reader groups look like: the values of `floodmark.streams.readers`, as they save themselves."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from floodmark.service._forms import Count, Form, Int64, Micros, Name, Position, SegmentId

Id = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
Segment = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
# As JSON has no tuples, lists are taken for them.
Share = Annotated[tuple[Name, Segment], Field(strict=False)]
ShareNumber = Annotated[tuple[Name, Segment, Int64], Field(strict=False)]
Place = Annotated[tuple[Name, Name, Int64], Field(strict=False)]
Places = dict[Name, Int64]
First = Literal[1]

MOST_STREAMS = 1_000


class RefForm(Form):
    """A group, by its name and id."""

    kind: Literal["group-ref"]
    version: First
    name: Name
    id: Count


class BoundForm(Form):
    """A place in a stream to begin or end at."""

    kind: Literal["bound"]
    version: First
    cut: Position | None
    time: Int64 | None
    stream_id: Count | None
    places: Places
    since: Int64 | None


class BoundsForm(Form):
    """What a group is to read of a stream."""

    kind: Literal["stream-bounds"]
    version: First
    stream: Name
    key: Name | None
    start: BoundForm
    end: BoundForm
    waits: bool


class NewGroupForm(Form):
    """A group to create. Who asks again with the same id gets the same group."""

    kind: Literal["new-group"]
    version: First
    name: Name
    id: Count
    streams: Annotated[list[BoundsForm], Field(max_length=MOST_STREAMS)]


class JoinForm(Form):
    """A reader that comes, and for how many microseconds it may be silent."""

    reader: Name
    instance: Id
    ttl: Annotated[Micros, Field(ge=1_000)]


class ExpelForm(Form):
    """A reader that is to go."""

    reader: Name
    instance: Id


class ReportForm(Form):
    """What a reader says of itself."""

    kind: Literal["reader-report"]
    version: First
    reader: Name
    instance: Id
    generation: Int64
    positions: list[ShareNumber]
    released: list[Share]
    times: list[ShareNumber]
    places: list[Place]
    confirms: Id | None


class StartCheckpointForm(Form):
    """A checkpoint to begin, and after how many microseconds it is given up."""

    checkpoint: Id
    name: Name
    timeout: Micros


class CheckpointForm(Form):
    """A checkpoint, by its id."""

    checkpoint: Id


class ResetForm(Form):
    """Where a group is to be set; asked for twice under one id, it is done once."""

    reset: Id
    streams: Annotated[list[BoundsForm], Field(max_length=MOST_STREAMS)]


class WantedStreamForm(Form):
    """What is known of a stream."""

    kind: Literal["wanted-stream"]
    version: First
    stream_id: Count
    of: Int64
    ends: dict[SegmentId, Int64]
    marks: Places


class WantedForm(Form):
    """What is known of a group and its streams."""

    kind: Literal["wanted"]
    version: First
    group: RefForm
    of: Int64
    streams: Annotated[list[WantedStreamForm], Field(max_length=MOST_STREAMS)]


class NewsForm(Form):
    """What somebody knows, and for how many seconds to wait for more."""

    wanted: WantedForm
    seconds: Annotated[float, Field(ge=0, strict=False)]


class GroupView(BaseModel):
    """All that is kept of a group."""

    kind: Literal["reader-group"]
    version: int
    name: str
    group_id: int
    parts: list[dict[str, Any]]
    created_at: int
    readers: list[dict[str, Any]]
    generation: int
    count: int
    pending: dict[str, Any] | None
    checkpoints: list[dict[str, Any]]
    reset_id: str | None


class GroupsView(BaseModel):
    """Groups, by their names."""

    groups: list[GroupView]


class NewsView(BaseModel):
    """What holds now of all that was asked about."""

    kind: Literal["news"]
    version: int
    streams: list[dict[str, Any]]
    state: GroupView | None
