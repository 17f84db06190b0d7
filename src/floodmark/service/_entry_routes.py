"""The marks log of a stream and key, and why its watermark stands where it stands."""

from collections.abc import Callable
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Path, Query

from floodmark._util.ints import INT64_MAX, INT64_MIN
from floodmark.service._desk import Desk, DeskOf, StreamId, StreamName, bad_request
from floodmark.service._forms import EntriesView, EntryView, ExplanationView, FoundEntryView, NumbersView
from floodmark.service._statuses import Json
from floodmark.streams import MarkEntry
from floodmark.streams._marks_table import MarksTable
from floodmark.streams.remote._forms import save_explanation
from floodmark.streams.remote._marks import MOST_ENTRIES

ROUTES = APIRouter(tags=["marks"])

Key = Annotated[str | None, Query(max_length=200, description="The time key; without it, the default key.")]
By = Literal["newest", "newest-with-lower-at-most", "oldest-with-lower-at-least", "newest-with-upper-at-most"]
_LOOKUPS: Final[dict[str, Callable[[MarksTable, int], MarkEntry | None]]] = {
    "newest-with-lower-at-most": MarksTable.newest_with_lower_at_most,
    "oldest-with-lower-at-least": MarksTable.oldest_with_lower_at_least,
    "newest-with-upper-at-most": MarksTable.newest_with_upper_at_most,
}


async def _marks(desk: Desk, stream: int, name: str | None, key: str | None) -> MarksTable:
    info = await desk.stream(stream, name, "read")
    if key is None or key not in info.settings.keys:
        info = await desk.run(desk.backend.catalog.refresh, info)
    return desk.backend.marks(info, info.settings.key(key))


@ROUTES.get("/streams/{stream}/entries", response_model=EntriesView)
async def list_entries(
    desk: DeskOf,
    stream: StreamId,
    key: Key = None,
    after: Annotated[int, Query(ge=INT64_MIN, le=INT64_MAX)] = 0,
    most: Annotated[int, Query(ge=0, le=MOST_ENTRIES)] = 1_000,
    name: StreamName = None,
) -> Json:
    """Return entries in their order, from behind a number on."""
    marks = await _marks(desk, stream, name, key)
    return Json({"entries": [entry.save() for entry in await desk.run(marks.page, after, most)]})


@ROUTES.get("/streams/{stream}/entries/find", response_model=FoundEntryView)
async def find_entry(
    desk: DeskOf,
    stream: StreamId,
    by: By,
    time: Annotated[int | None, Query(ge=INT64_MIN, le=INT64_MAX)] = None,
    key: Key = None,
    name: StreamName = None,
) -> Json:
    """Return the last watermark, or the place of a time, if there is one."""
    marks = await _marks(desk, stream, name, key)
    if (time is None) != (by == "newest"):
        raise bad_request(
            f"An entry was to be found by {by!r}, {'without' if time is None else 'with'} a time.",
            "Give a time, unless it is the newest one.",
        )
    entry = await (desk.run(marks.newest) if time is None else desk.run(_LOOKUPS[by], marks, time))
    return Json({"entry": None if entry is None else entry.save()})


@ROUTES.get("/streams/{stream}/entries/numbers", response_model=NumbersView)
async def show_numbers(desk: DeskOf, stream: StreamId, key: Key = None, name: StreamName = None) -> Json:
    """Return the numbers of the entries that are kept."""
    numbers = await desk.run((await _marks(desk, stream, name, key)).numbers)
    return Json({"first": numbers[0], "last": numbers[-1]} if numbers else {"first": 0, "last": 0})


@ROUTES.get("/streams/{stream}/entries/{number}", response_model=EntryView)
async def show_entry(
    desk: DeskOf,
    stream: StreamId,
    number: Annotated[int, Path(ge=INT64_MIN, le=INT64_MAX)],
    key: Key = None,
    name: StreamName = None,
) -> Json:
    """Return the entry of a number."""
    marks = await _marks(desk, stream, name, key)
    return Json({"entry": (await desk.run(marks.entry, number)).save()})


@ROUTES.get("/streams/{stream}/why", response_model=ExplanationView)
async def explain(desk: DeskOf, stream: StreamId, key: Key = None, name: StreamName = None) -> Json:
    """Return why the watermark stands where it stands: who holds it, and until when."""
    info = await desk.stream(stream, name, "read")
    info = await desk.run(desk.backend.catalog.refresh, info)
    return Json(save_explanation(await desk.run(desk.backend.explain, info, info.settings.key(key))))
