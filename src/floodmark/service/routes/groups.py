"""Reader groups: made, found, read with, and set to another place.

A token that may read all streams of a group may read with it. To delete or reset it, or to expel readers of
others, needs the scope to write. The forms are the values of `floodmark.streams.readers`, as they save themselves.
"""

import asyncio
import time
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field

from floodmark._util.ints import INT64_MAX
from floodmark._util.text import did_you_mean
from floodmark.control import Scope
from floodmark.errors import UnknownGroup
from floodmark.service.context import Context, RequestContext
from floodmark.service.messages import Count, DoneView, Form, Int64, JsonResponse, Micros, Name, Position, SegmentId
from floodmark.streams.groups.requests import GroupRef, NewGroup, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import GroupState

ClientId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
SegmentNumber = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
# As JSON has no tuples, lists are taken for them.
StreamSegment = Annotated[tuple[Name, SegmentNumber], Field(strict=False)]
StreamSegmentValue = Annotated[tuple[Name, SegmentNumber, Int64], Field(strict=False)]
MarksLogPlace = Annotated[tuple[Name, Name, Int64], Field(strict=False)]
MarksLogPlaces = dict[Name, Int64]
FormatVersion = Literal[1]

MAX_STREAMS = 1_000


class RefForm(Form):
    """A group, by its name and id."""

    kind: Literal["group-ref"]
    version: FormatVersion
    name: Name
    id: Count


class BoundForm(Form):
    """A place in a stream to begin or end at."""

    kind: Literal["bound"]
    version: FormatVersion
    cut: Position | None
    time: Int64 | None
    stream_id: Count | None
    places: MarksLogPlaces
    since: Int64 | None


class BoundsForm(Form):
    """What a group is to read of a stream."""

    kind: Literal["stream-bounds"]
    version: FormatVersion
    stream: Name
    key: Name | None
    start: BoundForm
    end: BoundForm
    waits: bool


class NewGroupForm(Form):
    """A group to create. Who asks again with the same id gets the same group."""

    kind: Literal["new-group"]
    version: FormatVersion
    name: Name
    id: Count
    streams: Annotated[list[BoundsForm], Field(max_length=MAX_STREAMS)]


class JoinForm(Form):
    """A reader that comes, and for how many microseconds it may be silent."""

    reader: Name
    instance: ClientId
    ttl: Annotated[Micros, Field(ge=1_000)]


class ExpelForm(Form):
    """A reader that is to go."""

    reader: Name
    instance: ClientId


class ReportForm(Form):
    """What a reader says of itself."""

    kind: Literal["reader-report"]
    version: FormatVersion
    reader: Name
    instance: ClientId
    generation: Int64
    positions: list[StreamSegmentValue]
    released: list[StreamSegment]
    times: list[StreamSegmentValue]
    places: list[MarksLogPlace]
    confirms: ClientId | None


class StartCheckpointForm(Form):
    """A checkpoint to begin, and after how many microseconds it is given up."""

    checkpoint: ClientId
    name: Name
    timeout: Micros


class CheckpointForm(Form):
    """A checkpoint, by its id."""

    checkpoint: ClientId


class ResetForm(Form):
    """Where a group is to be set; asked for twice under one id, it is done once."""

    reset: ClientId
    streams: Annotated[list[BoundsForm], Field(max_length=MAX_STREAMS)]


class StreamSubscriptionForm(Form):
    """What is known of a stream."""

    kind: Literal["wanted-stream"]
    version: FormatVersion
    stream_id: Count
    of: Int64
    ends: dict[SegmentId, Int64]
    marks: MarksLogPlaces


class SubscriptionForm(Form):
    """What is known of a group and its streams."""

    kind: Literal["wanted"]
    version: FormatVersion
    group: RefForm
    of: Int64
    streams: Annotated[list[StreamSubscriptionForm], Field(max_length=MAX_STREAMS)]


class NewsForm(Form):
    """What somebody knows, and for how many seconds to wait for more."""

    wanted: SubscriptionForm
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


ROUTES = APIRouter(tags=["groups"])

GroupId = Annotated[int, Path(ge=0, le=INT64_MAX, description="The id of the group.")]
GroupName = Annotated[str, Query(alias="name", min_length=1, max_length=200, description="What it is called.")]

_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.02


def _group_response(state: GroupState, status: int = 200) -> JsonResponse:
    return JsonResponse(state.save(), status_code=status)


async def _allowed_group(context: RequestContext, number: int, name: str, scope: Scope) -> GroupRef:
    """Return a group, if the token is good for that in all of its streams. One that is gone is told of when used."""
    try:
        state = await context.run(context.backend.groups.find, name)
    except UnknownGroup:
        context.allow_some(scope)
    else:
        _allow_all_streams(context, scope, state)
    return GroupRef(name, number)


def _allow_all_streams(context: RequestContext, scope: Scope, state: GroupState) -> None:
    for stream in state.streams:
        context.allow(scope, stream)


def _may_see(context: RequestContext, state: GroupState) -> bool:
    return all(context.may_see(stream) for stream in state.streams)


@ROUTES.get("/groups", response_model=GroupsView)
async def list_groups(context: Context) -> JsonResponse:
    """Return the groups all of whose streams the token is good for."""
    context.allow_some("read")
    groups = await context.run(context.backend.groups.all)
    return JsonResponse({"groups": [state.save() for state in groups if _may_see(context, state)]})


@ROUTES.post("/groups", response_model=GroupView, status_code=201)
async def create_group(context: Context, form: NewGroupForm) -> JsonResponse:
    """Create a group."""
    context.allow_some("read")
    for bounds in form.streams:
        context.allow("read", bounds.stream)
    made = await context.run(context.backend.groups.create, NewGroup.load(form.model_dump()))
    # The answer to one that was there before must not tell of streams that the token is not good for.
    _allow_all_streams(context, "read", made)
    return _group_response(made, 201)


@ROUTES.get("/group", response_model=GroupView)
async def find_group(context: Context, name: GroupName) -> JsonResponse:
    """Return the group of a name."""
    context.allow_some("read")
    try:
        state = await context.run(context.backend.groups.find, name)
    except UnknownGroup as unknown:
        # The guess must not tell of groups that the token may not see.
        groups = await context.run(context.backend.groups.all)
        seen = [one.name for one in groups if _may_see(context, one)]
        remedy = did_you_mean(name, seen, otherwise="Create it with create_group().")
        raise UnknownGroup(unknown.fact, rule=unknown.rule, remedy=remedy, **unknown.fields) from None
    _allow_all_streams(context, "read", state)
    return _group_response(state)


@ROUTES.delete("/groups/{group}", response_model=DoneView)
async def delete_group(context: Context, group: GroupId, name: GroupName) -> JsonResponse:
    """Forget a group."""
    ref = await _allowed_group(context, group, name, "write")
    await context.run(context.backend.groups.delete, ref)
    return JsonResponse({})


@ROUTES.post("/groups/{group}/join", response_model=GroupView)
async def join(context: Context, group: GroupId, form: JoinForm, name: GroupName) -> JsonResponse:
    """Take a reader in."""
    ref = await _allowed_group(context, group, name, "read")
    return _group_response(await context.run(context.backend.groups.join, ref, form.reader, form.instance, form.ttl))


@ROUTES.post("/groups/{group}/sync", response_model=GroupView)
async def sync(context: Context, group: GroupId, form: ReportForm, name: GroupName) -> JsonResponse:
    """Take what a reader says of itself, and return where the group is then."""
    ref = await _allowed_group(context, group, name, "read")
    return _group_response(await context.run(context.backend.groups.sync, ref, Report.load(form.model_dump())))


@ROUTES.post("/groups/{group}/leave", response_model=DoneView)
async def leave(context: Context, group: GroupId, form: ReportForm, name: GroupName) -> JsonResponse:
    """Take the last word of a reader; its segments are free from then on."""
    ref = await _allowed_group(context, group, name, "read")
    await context.run(context.backend.groups.leave, ref, Report.load(form.model_dump()))
    return JsonResponse({})


@ROUTES.post("/groups/{group}/expel", response_model=GroupView)
async def expel(context: Context, group: GroupId, form: ExpelForm, name: GroupName) -> JsonResponse:
    """Send a reader away that is known to be dead."""
    ref = await _allowed_group(context, group, name, "write")
    return _group_response(await context.run(context.backend.groups.expel, ref, form.reader, form.instance))


@ROUTES.post("/groups/{group}/tend", response_model=GroupView)
async def tend(context: Context, group: GroupId, name: GroupName) -> JsonResponse:
    """Settle what time alone changes, such as readers that have fallen silent, and return the group."""
    ref = await _allowed_group(context, group, name, "read")
    return _group_response(await context.run(context.backend.groups.tend, ref))


@ROUTES.post("/groups/{group}/start-checkpoint", response_model=GroupView)
async def start_checkpoint(
    context: Context, group: GroupId, form: StartCheckpointForm, name: GroupName
) -> JsonResponse:
    """Begin a checkpoint."""
    ref = await _allowed_group(context, group, name, "read")
    start = context.backend.groups.start_checkpoint
    return _group_response(await context.run(start, ref, form.checkpoint, form.name, form.timeout))


@ROUTES.post("/groups/{group}/cancel-checkpoint", response_model=GroupView)
async def cancel_checkpoint(context: Context, group: GroupId, form: CheckpointForm, name: GroupName) -> JsonResponse:
    """Give a checkpoint up that is not complete."""
    ref = await _allowed_group(context, group, name, "read")
    return _group_response(await context.run(context.backend.groups.cancel_checkpoint, ref, form.checkpoint))


@ROUTES.post("/groups/{group}/reset", response_model=GroupView)
async def reset(context: Context, group: GroupId, form: ResetForm, name: GroupName) -> JsonResponse:
    """Set all streams of a group to other places, and send its readers away."""
    ref = await _allowed_group(context, group, name, "write")
    return _group_response(await context.run(context.backend.groups.reset, ref, form.reset, _load_bounds(form.streams)))


@ROUTES.post("/news", response_model=NewsView)
async def wait_for_news(context: Context, form: NewsForm) -> JsonResponse:
    """Return as soon as something is newer than what is known, or when the time is over."""
    wanted = Subscription.load(form.wanted.model_dump())
    await _allowed_group(context, wanted.group.id, wanted.group.name, "read")
    for stream in wanted.streams:
        info = await context.run(context.backend.catalog.find_id, stream.stream_id)
        if info is not None:
            context.allow("read", info.name)
    give_up = time.monotonic() + min(form.seconds, context.limits.max_wait)
    pause = _FIRST_PAUSE
    while True:
        # One look at a time: who waits keeps no thread.
        news = await context.run(context.backend.news, wanted, 0.0)
        left = give_up - time.monotonic()
        if left <= 0 or context.is_stopping or news.is_new_to(wanted):
            return JsonResponse(news.save())
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _load_bounds(forms: list[BoundsForm]) -> tuple[StreamBounds, ...]:
    loaded: list[dict[str, Any]] = [form.model_dump() for form in forms]
    return tuple(StreamBounds.load(one) for one in loaded)
