"""Writers: opened, marks noted, idle, closed.

A single mark is the most frequent request. `MarkFastPath` answers it without FastAPI; the route `note` is there
for the OpenAPI document and for requests that are unusual in any way, and must say and do the same.
"""

import re
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from floodmark._util.ints import INT64_MAX
from floodmark.errors import FloodmarkError, NotAllowed, RequestTooLarge
from floodmark.service.context import CONTEXT_KEY, Context, RequestContext, StreamId, StreamName
from floodmark.service.messages import (
    AuthorForm,
    Count,
    DoneView,
    ErrorView,
    Form,
    Int64,
    JsonResponse,
    MarkOutcomeValue,
    Name,
    Position,
    describe_invalid_fields,
    error_response,
)
from floodmark.streams import MarkOutcome, StreamInfo
from floodmark.streams.definition import check_writer_id
from floodmark.streams.layout.positions import load_position
from floodmark.streams.ports import Author, MarkRequest, OpenedWriter, OutcomeOrError
from floodmark.streams.remote.wire import save_error, save_opened


class OpenWriterForm(Form):
    """A writer to open; without an id it notes no time."""

    writer: Name | None = None
    keys: list[Name] | None = Field(
        default=None, description="The keys it notes time for; without them, all of the stream."
    )


class WriterPositionForm(AuthorForm):
    """What a writer says of itself, and how far it has written."""

    position: Position


class MarkForm(WriterPositionForm):
    """A mark: all before the position is written, and what comes has at least this time."""

    key: Name
    time: Int64


class StreamMarkForm(MarkForm):
    """A mark, and the stream it is for."""

    stream: Count
    name: str | None = None


class MarksForm(Form):
    """Many marks."""

    marks: Annotated[list[StreamMarkForm], Field(min_length=1)]


class OpenedView(BaseModel):
    """A writer as it was opened; its times must be above the watermarks to count."""

    writer: str
    instance: int
    next_number: int
    watermarks: dict[str, int | None]


class OutcomeView(BaseModel):
    """What became of a mark."""

    outcome: MarkOutcomeValue


class ResultView(BaseModel):
    """What became of one mark of many: an outcome, or an error."""

    outcome: MarkOutcomeValue | None
    error: ErrorView | None


class ResultsView(BaseModel):
    """What became of many marks, in their order."""

    results: list[ResultView]


ROUTES = APIRouter(tags=["writers"])


@ROUTES.post("/streams/{stream}/marks", response_model=OutcomeView)
async def note(context: Context, stream: StreamId, form: MarkForm, name: StreamName = None) -> JsonResponse:
    """Take a mark, or say why not."""
    settled = await take_mark(context, stream, name, form)
    return error_response(settled) if isinstance(settled, FloodmarkError) else JsonResponse({"outcome": settled.value})


async def take_mark(context: RequestContext, stream: int, name: str | None, form: MarkForm) -> OutcomeOrError:
    """Return what became of a mark."""
    info = await context.stream(stream, name, "write")
    (settled,) = await context.marks.note([_note(info, form)])
    return settled


@ROUTES.post("/marks", response_model=ResultsView)
async def note_many(context: Context, form: MarksForm) -> JsonResponse:
    """Take many marks of any streams, each with an outcome or an error of its own."""
    if len(form.marks) > context.limits.max_marks:
        raise RequestTooLarge(
            f"The request has {len(form.marks)} marks.",
            rule=f"It has at most {context.limits.max_marks}.",
            remedy="Send them in several requests.",
            marks=len(form.marks),
            most=context.limits.max_marks,
        )
    results: list[OutcomeOrError | None] = [None] * len(form.marks)
    notes: dict[int, MarkRequest] = {}
    for place, mark in enumerate(form.marks):
        try:
            notes[place] = _note(await context.stream(mark.stream, mark.name, "write"), mark)
        except FloodmarkError as error:
            if isinstance(error, NotAllowed):
                raise
            results[place] = error
    for place, settled in zip(notes, await context.marks.note(list(notes.values())) if notes else [], strict=True):
        results[place] = settled
    return JsonResponse({"results": [_result_view(settled) for settled in results if settled is not None]})


@ROUTES.post("/streams/{stream}/writers", response_model=OpenedView)
async def open_writer(
    context: Context, stream: StreamId, form: OpenWriterForm, name: StreamName = None
) -> JsonResponse:
    """Open a writer, new or known. A known one goes on from its mark, and its older instance is heard no more."""
    info = await context.stream(stream, name, "write")
    if form.writer is not None:
        check_writer_id(form.writer)
    opened = await context.run(_open_in_store, context, info, form)
    if form.writer is not None:
        context.backend.wake()
    return JsonResponse(save_opened(opened))


@ROUTES.post("/streams/{stream}/writers/idle", response_model=DoneView)
async def idle(context: Context, stream: StreamId, form: WriterPositionForm, name: StreamName = None) -> JsonResponse:
    """Take a writer's word that nothing comes for now."""
    info = await context.stream(stream, name, "write")
    await context.run(context.backend.registry.idle, info, _author(form), load_position(form.position))
    context.backend.wake()
    return JsonResponse({})


@ROUTES.post("/streams/{stream}/writers/close", response_model=DoneView)
async def close(context: Context, stream: StreamId, form: WriterPositionForm, name: StreamName = None) -> JsonResponse:
    """Take a writer's word that nothing comes any more."""
    info = await context.stream(stream, name, "write")
    await context.run(context.backend.registry.close, info, _author(form), load_position(form.position))
    context.backend.wake()
    return JsonResponse({})


def _author(form: WriterPositionForm) -> Author:
    return Author(form.writer, form.instance)


def _note(info: StreamInfo, form: MarkForm) -> MarkRequest:
    return MarkRequest(info, _author(form), form.key, form.time, load_position(form.position))


def _result_view(settled: OutcomeOrError) -> dict[str, object]:
    if isinstance(settled, FloodmarkError):
        return {"outcome": None, "error": save_error(settled)}
    return {"outcome": settled.value, "error": None}


def _open_in_store(context: RequestContext, info: StreamInfo, form: OpenWriterForm) -> OpenedWriter:
    """Open a writer for keys that the stream has now: those that are not there would be waited for for ever."""
    current = context.backend.catalog.refresh(info)
    keys = current.settings.keys if form.keys is None else [current.settings.key(key) for key in form.keys]
    return context.backend.registry.open(current, form.writer, dict.fromkeys(keys))


# What does not look exactly so takes the long way, where all that may be wrong with it is told.
_MARKS_PATH: Final = re.compile(r"/v1/streams/(0|[1-9][0-9]{0,18})/marks")
_JSON_TYPE: Final = b"application/json"
_RESPONSE_START: Final = {"type": "http.response.start", "status": 200}
_OUTCOME_BODIES: Final = {outcome: JsonResponse({"outcome": outcome.value}).body for outcome in MarkOutcome}


class MarkFastPath:
    """Takes requests with a mark, and hands all others on."""

    __slots__ = ("_others",)

    def __init__(self, others: ASGIApp) -> None:
        """Hand them on to this application."""
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = _MARKS_PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        stream = -1 if path is None else int(path[1])
        if not 0 <= stream <= INT64_MAX or (b"content-type", _JSON_TYPE) not in scope["headers"]:
            await self._others(scope, receive, send)
            return
        try:
            settled = await _take_mark_fast(
                scope[CONTEXT_KEY], stream, scope["query_string"], await _read_body(receive)
            )
        except FloodmarkError as error:
            settled = error
        if isinstance(settled, FloodmarkError):
            response: Response = error_response(settled)
            await response(scope, receive, send)
            return
        body = _OUTCOME_BODIES[settled]
        headers = [(b"content-type", _JSON_TYPE), (b"content-length", str(len(body)).encode())]
        await send({**_RESPONSE_START, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _take_mark_fast(
    context: RequestContext, stream: int, query: bytes, body: bytearray
) -> MarkOutcome | FloodmarkError:
    try:
        form = MarkForm.model_validate_json(body)
    except ValidationError as error:
        return describe_invalid_fields(
            [{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)]
        )
    is_known = context.backend.catalog.cached(stream) is not None
    return await take_mark(context, stream, None if is_known else _name_in_query(query), form)


def _name_in_query(query: bytes) -> str | None:
    """Return what the stream is called by who asks, which matters only if it is not known here."""
    names = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("name")
    return None if names is None else names[-1]


async def _read_body(receive: Receive) -> bytearray:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body
