"""Writers: opened, heard, idle, closed."""

from fastapi import APIRouter

from floodmark.errors import FloodmarkError, NotAllowed, RequestTooLarge
from floodmark.service._desk import Desk, DeskOf, StreamId, StreamName
from floodmark.service._forms import (
    Done,
    MarkForm,
    MarksForm,
    OpenedView,
    OpenWriter,
    OutcomeView,
    ResultsView,
    Word,
)
from floodmark.service._statuses import Json, refusal
from floodmark.streams import Author, StreamInfo
from floodmark.streams._log import Opened
from floodmark.streams._positions import load_position
from floodmark.streams._settling import Note, Settled
from floodmark.streams._stream_names import check_writer_id
from floodmark.streams.remote._forms import save_opened
from floodmark.streams.remote._refusals import save_error

ROUTES = APIRouter(tags=["writers"])


@ROUTES.post("/streams/{stream}/marks", response_model=OutcomeView)
async def note(desk: DeskOf, stream: StreamId, form: MarkForm, name: StreamName = None) -> Json:
    """Take a mark, or say why not."""
    settled = await take_mark(desk, stream, name, form)
    return refusal(settled) if isinstance(settled, FloodmarkError) else Json({"outcome": settled.value})


async def take_mark(desk: Desk, stream: int, name: str | None, form: MarkForm) -> Settled:
    """Return what became of a mark."""
    info = await desk.stream(stream, name, "write")
    (settled,) = await desk.marks.note([_note(info, form)])
    return settled


@ROUTES.post("/marks", response_model=ResultsView)
async def note_many(desk: DeskOf, form: MarksForm) -> Json:
    """Take many marks of any streams, each with an outcome or an error of its own."""
    if len(form.marks) > desk.limits.max_marks:
        raise RequestTooLarge(
            f"The request has {len(form.marks)} marks.",
            rule=f"It has at most {desk.limits.max_marks}.",
            remedy="Send them in several requests.",
            marks=len(form.marks),
            most=desk.limits.max_marks,
        )
    results: list[Settled | None] = [None] * len(form.marks)
    notes: dict[int, Note] = {}
    for place, mark in enumerate(form.marks):
        try:
            notes[place] = _note(await desk.stream(mark.stream, mark.name, "write"), mark)
        except FloodmarkError as error:
            if isinstance(error, NotAllowed):
                raise
            results[place] = error
    for place, settled in zip(notes, await desk.marks.note(list(notes.values())) if notes else [], strict=True):
        results[place] = settled
    return Json({"results": [_result(settled) for settled in results if settled is not None]})


@ROUTES.post("/streams/{stream}/writers", response_model=OpenedView)
async def open_writer(desk: DeskOf, stream: StreamId, form: OpenWriter, name: StreamName = None) -> Json:
    """Open a writer, new or known. A known one goes on from its mark, and its older instance is heard no more."""
    info = await desk.stream(stream, name, "write")
    if form.writer is not None:
        check_writer_id(form.writer)
    opened = await desk.run(_open, desk, info, form)
    if form.writer is not None:
        desk.backend.wake()
    return Json(save_opened(opened))


@ROUTES.post("/streams/{stream}/writers/idle", response_model=Done)
async def idle(desk: DeskOf, stream: StreamId, form: Word, name: StreamName = None) -> Json:
    """Take a writer's word that nothing comes for now."""
    info = await desk.stream(stream, name, "write")
    await desk.run(desk.backend.registry.idle, info, _author(form), load_position(form.position))
    desk.backend.wake()
    return Json({})


@ROUTES.post("/streams/{stream}/writers/close", response_model=Done)
async def close(desk: DeskOf, stream: StreamId, form: Word, name: StreamName = None) -> Json:
    """Take a writer's word that nothing comes any more."""
    info = await desk.stream(stream, name, "write")
    await desk.run(desk.backend.registry.close, info, _author(form), load_position(form.position))
    desk.backend.wake()
    return Json({})


def _author(form: Word) -> Author:
    return Author(form.writer, form.instance)


def _note(info: StreamInfo, form: MarkForm) -> Note:
    return Note(info, _author(form), form.key, form.time, load_position(form.position))


def _result(settled: Settled) -> dict[str, object]:
    if isinstance(settled, FloodmarkError):
        return {"outcome": None, "error": save_error(settled)}
    return {"outcome": settled.value, "error": None}


def _open(desk: Desk, info: StreamInfo, form: OpenWriter) -> Opened:
    """Open a writer for keys that the stream has now: those that are not there would be waited for for ever."""
    current = desk.backend.catalog.refresh(info)
    keys = current.settings.keys if form.keys is None else [current.settings.key(key) for key in form.keys]
    return desk.backend.registry.open(current, form.writer, dict.fromkeys(keys))
