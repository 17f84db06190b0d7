"""The marks log of a stream and key, and the explanation of its watermark."""

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel

from floodmark._util.ints import INT64_MAX, INT64_MIN
from floodmark.service.context import Context, RequestContext, StreamId, StreamName
from floodmark.service.messages import JsonResponse, bad_request
from floodmark.streams import MarkEntry
from floodmark.streams.local.marks import MarksTable
from floodmark.streams.remote.wire import MOST_ENTRIES, save_explanation


class EntriesView(BaseModel):
    """Entries of a marks log, in order."""

    entries: list[dict[str, Any]]


class EntryView(BaseModel):
    """An entry of a marks log."""

    entry: dict[str, Any]


class FoundEntryView(BaseModel):
    """An entry of a marks log, if there is one."""

    entry: dict[str, Any] | None


class NumbersView(BaseModel):
    """The numbers of the first and the last stored entry; 0 if there are none."""

    first: int
    last: int


class ExplanationView(BaseModel):
    """Why a watermark has its value: the writers that hold it back, and what would release it."""

    stream: str
    key: str
    watermark: int | None
    kind: str | None
    waits_for: str
    holders: list[str]
    next_at: int | None
    set_aside: list[str]
    idle: list[str]
    closed: list[str]
    timed_out: list[str]
    writers: list[dict[str, Any]]


ROUTES = APIRouter(tags=["marks"])

Key = Annotated[str | None, Query(max_length=200, description="The time key; without it, the default key.")]
EntryLookup = Literal["newest", "newest-with-lower-at-most", "oldest-with-lower-at-least", "newest-with-upper-at-most"]
_LOOKUPS: Final[dict[str, Callable[[MarksTable, int], MarkEntry | None]]] = {
    "newest-with-lower-at-most": MarksTable.newest_with_lower_at_most,
    "oldest-with-lower-at-least": MarksTable.oldest_with_lower_at_least,
    "newest-with-upper-at-most": MarksTable.newest_with_upper_at_most,
}


async def _marks_log(context: RequestContext, stream: int, name: str | None, key: str | None) -> MarksTable:
    info = await context.stream(stream, name, "read")
    if key is None or key not in info.settings.keys:
        info = await context.run(context.backend.catalog.refresh, info)
    return context.backend.marks(info, info.settings.key(key))


@ROUTES.get("/streams/{stream}/entries", response_model=EntriesView)
async def list_entries(
    context: Context,
    stream: StreamId,
    key: Key = None,
    after: Annotated[int, Query(ge=INT64_MIN, le=INT64_MAX)] = 0,
    most: Annotated[int, Query(ge=0, le=MOST_ENTRIES)] = 1_000,
    name: StreamName = None,
) -> JsonResponse:
    """Return up to `most` entries after the number `after`, in order."""
    marks = await _marks_log(context, stream, name, key)
    return await context.answer(lambda: {"entries": [entry.save() for entry in marks.page(after, most)]})


@ROUTES.get("/streams/{stream}/entries/find", response_model=FoundEntryView)
async def find_entry(
    context: Context,
    stream: StreamId,
    by: EntryLookup,
    time: Annotated[int | None, Query(ge=INT64_MIN, le=INT64_MAX)] = None,
    key: Key = None,
    name: StreamName = None,
) -> JsonResponse:
    """Return the newest watermark, or the entry at a time, if there is one."""
    marks = await _marks_log(context, stream, name, key)
    if (time is None) != (by == "newest"):
        raise bad_request(
            f"The lookup {by!r} was requested {'without' if time is None else 'with'} a time.",
            "Send a time for every lookup except by=newest.",
        )
    entry = await (context.run(marks.newest) if time is None else context.run(_LOOKUPS[by], marks, time))
    return JsonResponse({"entry": None if entry is None else entry.save()})


@ROUTES.get("/streams/{stream}/entries/numbers", response_model=NumbersView)
async def show_numbers(context: Context, stream: StreamId, key: Key = None, name: StreamName = None) -> JsonResponse:
    """Return the numbers of the stored entries."""
    numbers = await context.run((await _marks_log(context, stream, name, key)).numbers)
    return JsonResponse({"first": numbers[0], "last": numbers[-1]} if numbers else {"first": 0, "last": 0})


@ROUTES.get("/streams/{stream}/entries/{number}", response_model=EntryView)
async def show_entry(
    context: Context,
    stream: StreamId,
    number: Annotated[int, Path(ge=INT64_MIN, le=INT64_MAX)],
    key: Key = None,
    name: StreamName = None,
) -> JsonResponse:
    """Return the entry with a number."""
    marks = await _marks_log(context, stream, name, key)
    return JsonResponse({"entry": (await context.run(marks.entry, number)).save()})


@ROUTES.get("/streams/{stream}/why", response_model=ExplanationView)
async def explain(context: Context, stream: StreamId, key: Key = None, name: StreamName = None) -> JsonResponse:
    """Return why the watermark has its value: the writers that hold it back, and until when."""
    info = await context.stream(stream, name, "read")
    info = await context.run(context.backend.catalog.refresh, info)
    explain = context.backend.explain
    return await context.answer(lambda: save_explanation(explain(info, info.settings.key(key))))
