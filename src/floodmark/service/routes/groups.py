"""Reader groups: create, find, read, checkpoint, reset.

Reading with a group needs the scope 'read' in all of its streams; deleting or resetting it, or expelling readers, needs
'write'. The forms are the saved values of `floodmark.streams.groups`.
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
from floodmark.service.forms import FormRoute, needs
from floodmark.service.messages import (
    Count,
    DoneView,
    FailFast,
    Form,
    Int64,
    JsonResponse,
    Micros,
    Name,
    Position,
    SegmentId,
)
from floodmark.streams.groups.requests import GroupRef, NewGroup, Report, StreamBounds, Subscription
from floodmark.streams.groups.state import GroupState

ClientId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]
Instance = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_\-]{16,64}$",
        description="A random text that only this reader knows. The group shows its instance_id instead.",
    ),
]
SegmentNumber = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
# strict=False: JSON has lists in place of tuples.
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
    """A position in a stream to start or end at."""

    kind: Literal["bound"]
    version: FormatVersion
    cut: Position | None
    time: Int64 | None
    stream_id: Count | None
    places: MarksLogPlaces
    since: Int64 | None
    lowers: dict[Name, Int64] = Field(default_factory=dict, description="The watermark at each place.")


class BoundsForm(Form):
    """The range that a group reads of a stream."""

    kind: Literal["stream-bounds"]
    version: FormatVersion
    stream: Name
    key: Name | None
    start: BoundForm
    end: BoundForm
    waits: bool


class NewGroupForm(Form):
    """A group to create. Repeating the request with the same id is idempotent."""

    kind: Literal["new-group"]
    version: FormatVersion
    name: Name
    id: Count
    streams: Annotated[list[BoundsForm], Field(max_length=MAX_STREAMS, fail_fast=True)]


class JoinForm(Form):
    """A reader that joins, and its heartbeat ttl in microseconds."""

    reader: Name
    instance: Instance
    ttl: Annotated[Micros, Field(ge=1_000)]


class ExpelForm(Form):
    """A reader to expel, by the instance_id that the group shows."""

    reader: Name
    instance_id: ClientId


class ReportForm(Form):
    """The progress of a reader."""

    kind: Literal["reader-report"]
    version: FormatVersion
    reader: Name
    instance: Instance
    generation: Int64
    positions: Annotated[list[StreamSegmentValue], FailFast]
    released: Annotated[list[StreamSegment], FailFast]
    times: Annotated[list[StreamSegmentValue], FailFast]
    places: Annotated[list[MarksLogPlace], FailFast]
    confirms: ClientId | None
    lowers: list[MarksLogPlace] = Field(default_factory=list, description="The watermark at each place.")


class StartCheckpointForm(Form):
    """A checkpoint to start, and its timeout in microseconds."""

    checkpoint: ClientId
    name: Name
    timeout: Micros


class CheckpointForm(Form):
    """The id of a checkpoint."""

    checkpoint: ClientId


class ResetForm(Form):
    """The new positions of a group. Repeating a reset with the same id is idempotent."""

    reset: ClientId
    streams: Annotated[list[BoundsForm], Field(max_length=MAX_STREAMS, fail_fast=True)]


class StreamSubscriptionForm(Form):
    """The last state of a stream that the client has seen."""

    kind: Literal["wanted-stream"]
    version: FormatVersion
    stream_id: Count
    of: Int64
    ends: dict[SegmentId, Int64]
    marks: MarksLogPlaces


class SubscriptionForm(Form):
    """The last state of a group and its streams that the client has seen."""

    kind: Literal["wanted"]
    version: FormatVersion
    group: RefForm
    of: Int64
    streams: Annotated[list[StreamSubscriptionForm], Field(max_length=MAX_STREAMS, fail_fast=True)]


class NewsForm(Form):
    """The state that the client has seen, and how many seconds to wait for a newer one."""

    wanted: SubscriptionForm
    seconds: Annotated[float, Field(ge=0, strict=False)]


class GroupView(BaseModel):
    """The stored state of a group."""

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
    """Groups, sorted by name."""

    groups: list[GroupView]


class NewsView(BaseModel):
    """The current state of everything in the subscription."""

    kind: Literal["news"]
    version: int
    streams: list[dict[str, Any]]
    state: GroupView | None


ROUTES = APIRouter(tags=["groups"], route_class=FormRoute)

GroupId = Annotated[int, Path(ge=0, le=INT64_MAX, description="The id of the group.")]
GroupName = Annotated[str, Query(alias="name", min_length=1, max_length=200, description="The name of the group.")]

_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.02


async def _allowed_group(context: RequestContext, number: int, name: str, scope: Scope) -> GroupRef:
    """Check that the token permits `scope` in all streams of a group. A deleted group is reported when it is used."""
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
    """Return the groups whose streams the token covers."""
    context.allow_some("read")
    groups = context.backend.groups
    return await context.answer(
        lambda: {"groups": [state.save() for state in groups.all() if _may_see(context, state)]}
    )


@ROUTES.post("/groups", response_model=GroupView, status_code=201)
@needs("read")
async def create_group(context: Context, form: NewGroupForm) -> JsonResponse:
    """Create a group."""
    context.allow_some("read")
    for bounds in form.streams:
        context.allow("read", bounds.stream)
    state = await context.run(lambda: context.backend.groups.create(NewGroup.load(form.model_dump())))
    # An existing group must not reveal streams that the token does not cover.
    _allow_all_streams(context, "read", state)
    return await context.answer(state.save, 201)


@ROUTES.get("/group", response_model=GroupView)
async def find_group(context: Context, name: GroupName) -> JsonResponse:
    """Return the group with a name."""
    context.allow_some("read")
    try:
        state = await context.run(context.backend.groups.find, name)
    except UnknownGroup as unknown:
        # The suggestion must not reveal groups that the token does not cover.
        groups = await context.run(context.backend.groups.all)
        visible = [group.name for group in groups if _may_see(context, group)]
        remedy = did_you_mean(name, visible, otherwise="Create it with create_group().")
        raise UnknownGroup(unknown.fact, rule=unknown.rule, remedy=remedy, **unknown.fields) from None
    _allow_all_streams(context, "read", state)
    return await context.answer(state.save)


@ROUTES.delete("/groups/{group}", response_model=DoneView)
async def delete_group(context: Context, group: GroupId, name: GroupName) -> JsonResponse:
    """Delete a group."""
    ref = await _allowed_group(context, group, name, "write")
    await context.run(context.backend.groups.delete, ref)
    return JsonResponse({})


@ROUTES.post("/groups/{group}/join", response_model=GroupView)
@needs("read")
async def join(context: Context, group: GroupId, form: JoinForm, name: GroupName) -> JsonResponse:
    """Add a reader to a group."""
    ref = await _allowed_group(context, group, name, "read")
    groups = context.backend.groups
    return await context.answer(lambda: groups.join(ref, form.reader, form.instance, form.ttl).save())


@ROUTES.post("/groups/{group}/sync", response_model=GroupView)
@needs("read")
async def sync(context: Context, group: GroupId, form: ReportForm, name: GroupName) -> JsonResponse:
    """Store the progress of a reader and return the state of the group."""
    ref = await _allowed_group(context, group, name, "read")
    groups = context.backend.groups
    return await context.answer(lambda: groups.sync(ref, Report.load(form.model_dump())).save())


@ROUTES.post("/groups/{group}/leave", response_model=DoneView)
@needs("read")
async def leave(context: Context, group: GroupId, form: ReportForm, name: GroupName) -> JsonResponse:
    """Store the final progress of a reader and release its segments."""
    ref = await _allowed_group(context, group, name, "read")
    await context.run(lambda: context.backend.groups.leave(ref, Report.load(form.model_dump())))
    return JsonResponse({})


@ROUTES.post("/groups/{group}/expel", response_model=GroupView)
@needs("write")
async def expel(context: Context, group: GroupId, form: ExpelForm, name: GroupName) -> JsonResponse:
    """Remove a dead reader from a group."""
    ref = await _allowed_group(context, group, name, "write")
    return await context.answer(lambda: context.backend.groups.expel(ref, form.reader, form.instance_id).save())


@ROUTES.post("/groups/{group}/tend", response_model=GroupView)
async def tend(context: Context, group: GroupId, name: GroupName) -> JsonResponse:
    """Apply changes that depend on time only, such as readers whose heartbeats stopped, and return the group."""
    ref = await _allowed_group(context, group, name, "read")
    return await context.answer(lambda: context.backend.groups.refresh(ref).save())


@ROUTES.post("/groups/{group}/start-checkpoint", response_model=GroupView)
@needs("read")
async def start_checkpoint(
    context: Context, group: GroupId, form: StartCheckpointForm, name: GroupName
) -> JsonResponse:
    """Start a checkpoint."""
    ref = await _allowed_group(context, group, name, "read")
    start = context.backend.groups.start_checkpoint
    return await context.answer(lambda: start(ref, form.checkpoint, form.name, form.timeout).save())


@ROUTES.post("/groups/{group}/cancel-checkpoint", response_model=GroupView)
@needs("read")
async def cancel_checkpoint(context: Context, group: GroupId, form: CheckpointForm, name: GroupName) -> JsonResponse:
    """Cancel an incomplete checkpoint."""
    ref = await _allowed_group(context, group, name, "read")
    return await context.answer(lambda: context.backend.groups.cancel_checkpoint(ref, form.checkpoint).save())


@ROUTES.post("/groups/{group}/reset", response_model=GroupView)
@needs("write")
async def reset(context: Context, group: GroupId, form: ResetForm, name: GroupName) -> JsonResponse:
    """Move a group to new positions in all of its streams, and remove its readers."""
    ref = await _allowed_group(context, group, name, "write")
    groups = context.backend.groups
    return await context.answer(lambda: groups.reset(ref, form.reset, _load_bounds(form.streams)).save())


@ROUTES.post("/news", response_model=NewsView)
@needs("read")
async def wait_for_news(context: Context, form: NewsForm) -> JsonResponse:
    """Return as soon as anything is newer than the client's state, or when the time is over."""
    subscription = await context.run(lambda: Subscription.load(form.wanted.model_dump()))
    await _allowed_group(context, subscription.group.id, subscription.group.name, "read")
    for stream in subscription.streams:
        info = await context.run(context.backend.catalog.find_id, stream.stream_id)
        if info is not None:
            context.allow("read", info.name)
    give_up = time.monotonic() + min(form.seconds, context.limits.max_wait)
    pause = _FIRST_PAUSE
    while True:
        # Poll instead of waiting in a thread, so that waiting requests do not occupy the pool.
        news = await context.run(context.backend.news, subscription, 0.0)
        left = give_up - time.monotonic()
        if left <= 0 or context.is_stopping or news.is_new_to(subscription):
            return await context.answer(news.save)
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _load_bounds(forms: list[BoundsForm]) -> tuple[StreamBounds, ...]:
    loaded: list[dict[str, Any]] = [form.model_dump() for form in forms]
    return tuple(StreamBounds.load(bounds) for bounds in loaded)
