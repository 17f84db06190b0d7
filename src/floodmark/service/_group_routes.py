"""Reader groups: made, found, read with, and set to another place.

Whoever may read all streams of a group may read with it. To delete or reset it, or to send readers of others away,
needs the scope to write.
"""

import asyncio
import time
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query

from floodmark._util.ints import INT64_MAX
from floodmark._util.text import did_you_mean
from floodmark.control import Scope
from floodmark.errors import UnknownGroup
from floodmark.service._desk import Desk, DeskOf
from floodmark.service._forms import Done
from floodmark.service._group_forms import (
    BoundsForm,
    CheckpointForm,
    ExpelForm,
    GroupsView,
    GroupView,
    JoinForm,
    NewGroupForm,
    NewsForm,
    NewsView,
    ReportForm,
    ResetForm,
    StartCheckpointForm,
)
from floodmark.service._statuses import Json
from floodmark.streams.readers._requests import GroupRef, NewGroup, Report, StreamBounds, Wanted
from floodmark.streams.readers._state import GroupState

ROUTES = APIRouter(tags=["groups"])

GroupId = Annotated[int, Path(ge=0, le=INT64_MAX, description="The id of the group.")]
GroupName = Annotated[str, Query(alias="name", min_length=1, max_length=200, description="What it is called.")]

_FIRST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.02


def _shown(state: GroupState, status: int = 200) -> Json:
    return Json(state.save(), status_code=status)


async def _group(desk: Desk, number: int, name: str, scope: Scope) -> GroupRef:
    """Return a group, if the token is good for that in all of its streams. One that is gone is told of when used."""
    try:
        state = await desk.run(desk.backend.groups.find, name)
    except UnknownGroup:
        desk.allow_some(scope)
    else:
        _allow_all(desk, scope, state)
    return GroupRef(name, number)


def _allow_all(desk: Desk, scope: Scope, state: GroupState) -> None:
    for stream in state.streams:
        desk.allow(scope, stream)


def _may_see(desk: Desk, state: GroupState) -> bool:
    return all(desk.may_see(stream) for stream in state.streams)


@ROUTES.get("/groups", response_model=GroupsView)
async def list_groups(desk: DeskOf) -> Json:
    """Return the groups all of whose streams the token is good for."""
    desk.allow_some("read")
    groups = await desk.run(desk.backend.groups.all)
    return Json({"groups": [state.save() for state in groups if _may_see(desk, state)]})


@ROUTES.post("/groups", response_model=GroupView, status_code=201)
async def create_group(desk: DeskOf, form: NewGroupForm) -> Json:
    """Create a group."""
    desk.allow_some("read")
    for bounds in form.streams:
        desk.allow("read", bounds.stream)
    made = await desk.run(desk.backend.groups.create, NewGroup.load(form.model_dump()))
    # The answer to one that was there before must not tell of streams that the token is not good for.
    _allow_all(desk, "read", made)
    return _shown(made, 201)


@ROUTES.get("/group", response_model=GroupView)
async def find_group(desk: DeskOf, name: GroupName) -> Json:
    """Return the group of a name."""
    desk.allow_some("read")
    try:
        state = await desk.run(desk.backend.groups.find, name)
    except UnknownGroup as unknown:
        # The guess must not tell of groups that the token may not see.
        groups = await desk.run(desk.backend.groups.all)
        seen = [one.name for one in groups if _may_see(desk, one)]
        remedy = did_you_mean(name, seen, otherwise="Create it with create_group().")
        raise UnknownGroup(unknown.fact, rule=unknown.rule, remedy=remedy, **unknown.fields) from None
    _allow_all(desk, "read", state)
    return _shown(state)


@ROUTES.delete("/groups/{group}", response_model=Done)
async def delete_group(desk: DeskOf, group: GroupId, name: GroupName) -> Json:
    """Forget a group."""
    ref = await _group(desk, group, name, "write")
    await desk.run(desk.backend.groups.delete, ref)
    return Json({})


@ROUTES.post("/groups/{group}/join", response_model=GroupView)
async def join(desk: DeskOf, group: GroupId, form: JoinForm, name: GroupName) -> Json:
    """Take a reader in."""
    ref = await _group(desk, group, name, "read")
    return _shown(await desk.run(desk.backend.groups.join, ref, form.reader, form.instance, form.ttl))


@ROUTES.post("/groups/{group}/sync", response_model=GroupView)
async def sync(desk: DeskOf, group: GroupId, form: ReportForm, name: GroupName) -> Json:
    """Take what a reader says of itself, and return where the group is then."""
    ref = await _group(desk, group, name, "read")
    return _shown(await desk.run(desk.backend.groups.sync, ref, Report.load(form.model_dump())))


@ROUTES.post("/groups/{group}/leave", response_model=Done)
async def leave(desk: DeskOf, group: GroupId, form: ReportForm, name: GroupName) -> Json:
    """Take the last word of a reader; its segments are free from then on."""
    ref = await _group(desk, group, name, "read")
    await desk.run(desk.backend.groups.leave, ref, Report.load(form.model_dump()))
    return Json({})


@ROUTES.post("/groups/{group}/expel", response_model=GroupView)
async def expel(desk: DeskOf, group: GroupId, form: ExpelForm, name: GroupName) -> Json:
    """Send a reader away that is known to be dead."""
    ref = await _group(desk, group, name, "write")
    return _shown(await desk.run(desk.backend.groups.expel, ref, form.reader, form.instance))


@ROUTES.post("/groups/{group}/tend", response_model=GroupView)
async def tend(desk: DeskOf, group: GroupId, name: GroupName) -> Json:
    """Settle what time alone changes, such as readers that have fallen silent, and return the group."""
    ref = await _group(desk, group, name, "read")
    return _shown(await desk.run(desk.backend.groups.tend, ref))


@ROUTES.post("/groups/{group}/start-checkpoint", response_model=GroupView)
async def start_checkpoint(desk: DeskOf, group: GroupId, form: StartCheckpointForm, name: GroupName) -> Json:
    """Begin a checkpoint."""
    ref = await _group(desk, group, name, "read")
    start = desk.backend.groups.start_checkpoint
    return _shown(await desk.run(start, ref, form.checkpoint, form.name, form.timeout))


@ROUTES.post("/groups/{group}/cancel-checkpoint", response_model=GroupView)
async def cancel_checkpoint(desk: DeskOf, group: GroupId, form: CheckpointForm, name: GroupName) -> Json:
    """Give a checkpoint up that is not complete."""
    ref = await _group(desk, group, name, "read")
    return _shown(await desk.run(desk.backend.groups.cancel_checkpoint, ref, form.checkpoint))


@ROUTES.post("/groups/{group}/reset", response_model=GroupView)
async def reset(desk: DeskOf, group: GroupId, form: ResetForm, name: GroupName) -> Json:
    """Set all streams of a group to other places, and send its readers away."""
    ref = await _group(desk, group, name, "write")
    return _shown(await desk.run(desk.backend.groups.reset, ref, form.reset, _bounds(form.streams)))


@ROUTES.post("/news", response_model=NewsView)
async def wait_for_news(desk: DeskOf, form: NewsForm) -> Json:
    """Return as soon as something is newer than what is known, or when the time is over."""
    wanted = Wanted.load(form.wanted.model_dump())
    await _group(desk, wanted.group.id, wanted.group.name, "read")
    for stream in wanted.streams:
        info = await desk.run(desk.backend.catalog.find_id, stream.stream_id)
        if info is not None:
            desk.allow("read", info.name)
    give_up = time.monotonic() + min(form.seconds, desk.limits.max_wait)
    pause = _FIRST_PAUSE
    while True:
        # One look at a time: who waits keeps no thread.
        news = await desk.run(desk.backend.news, wanted, 0.0)
        left = give_up - time.monotonic()
        if left <= 0 or desk.is_stopping or news.is_new_to(wanted):
            return Json(news.save())
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE)


def _bounds(forms: list[BoundsForm]) -> tuple[StreamBounds, ...]:
    loaded: list[dict[str, Any]] = [form.model_dump() for form in forms]
    return tuple(StreamBounds.load(one) for one in loaded)
