"""Writers: open, note marks, idle, close.

A single mark is the most frequent request. `MarkFastPath` answers it without FastAPI. The route `note` serves the
OpenAPI document and unusual requests; both must behave the same.
"""

import re
from typing import Annotated, Final
from urllib.parse import parse_qs

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from floodmark._util.ints import INT64_MAX
from floodmark.errors import FloodmarkError, NotAllowed, RequestTooLarge
from floodmark.service.context import CONTEXT_KEY, Context, RequestContext, StreamId, StreamName
from floodmark.service.forms import FormRoute, needs, parse_form
from floodmark.service.messages import (
    AuthorForm,
    Count,
    DoneView,
    ErrorView,
    FailFast,
    Form,
    Int64,
    JsonResponse,
    MarkOutcomeValue,
    Name,
    Position,
    error_response,
)
from floodmark.streams import MarkOutcome, StreamInfo
from floodmark.streams.definition import check_writer_id
from floodmark.streams.layout.positions import load_position
from floodmark.streams.ports import Author, MarkRequest, OpenedWriter, OutcomeOrError
from floodmark.streams.remote.wire import save_error, save_opened


class OpenWriterForm(Form):
    """A writer to open; without an id it cannot note time."""

    writer: Name | None = None
    keys: Annotated[list[Name], FailFast] | None = Field(
        default=None, description="The keys it notes time for; by default, all keys of the stream."
    )


class WriterPositionForm(AuthorForm):
    """A writer, and the position up to which it has written."""

    position: Position


class MarkForm(WriterPositionForm):
    """A mark: events after the position have at least this time."""

    key: Name
    time: Int64


class StreamMarkForm(MarkForm):
    """A mark, and the stream it is for."""

    stream: Count
    name: str | None = None


class MarksForm(Form):
    """Many marks."""

    marks: Annotated[list[StreamMarkForm], Field(min_length=1, fail_fast=True)]


class OpenedView(BaseModel):
    """An opened writer; its marks count only above the watermarks."""

    writer: str
    instance: int
    next_number: int
    watermarks: dict[str, int | None]


class OutcomeView(BaseModel):
    """The outcome of a mark."""

    outcome: MarkOutcomeValue


class ResultView(BaseModel):
    """The outcome or error of one mark of many."""

    outcome: MarkOutcomeValue | None
    error: ErrorView | None


class ResultsView(BaseModel):
    """The outcomes of many marks, in order."""

    results: list[ResultView]


ROUTES = APIRouter(tags=["writers"], route_class=FormRoute)


@ROUTES.post("/streams/{stream}/marks", response_model=OutcomeView)
@needs("write")
async def note(context: Context, stream: StreamId, form: MarkForm, name: StreamName = None) -> JsonResponse:
    """Note a mark, or return why it was refused."""
    info = await context.stream(stream, name, "write")
    (outcome,) = await context.marks.note([_mark_request(info, form)])
    return error_response(outcome) if isinstance(outcome, FloodmarkError) else JsonResponse({"outcome": outcome.value})


@ROUTES.post("/marks", response_model=ResultsView)
@needs("write")
async def note_many(context: Context, form: MarksForm) -> JsonResponse:
    """Note many marks in any streams, each with its own outcome or error."""
    if len(form.marks) > context.limits.max_marks:
        raise RequestTooLarge(
            f"The request has {len(form.marks)} marks.",
            rule=f"A request has at most {context.limits.max_marks} marks.",
            remedy="Split them into several requests.",
            marks=len(form.marks),
            most=context.limits.max_marks,
        )
    results: list[OutcomeOrError | None] = [None] * len(form.marks)
    requests: dict[int, MarkRequest] = {}
    for index, mark in enumerate(form.marks):
        try:
            requests[index] = _mark_request(await context.stream(mark.stream, mark.name, "write"), mark)
        except FloodmarkError as error:
            if isinstance(error, NotAllowed):
                raise
            results[index] = error
    outcomes = await context.marks.note(list(requests.values())) if requests else []
    for index, outcome in zip(requests, outcomes, strict=True):
        results[index] = outcome
    return await context.answer(lambda: {"results": [_result_view(result) for result in results if result is not None]})


@ROUTES.post("/streams/{stream}/writers", response_model=OpenedView)
@needs("write")
async def open_writer(
    context: Context, stream: StreamId, form: OpenWriterForm, name: StreamName = None
) -> JsonResponse:
    """Open a writer. An existing one continues from its mark, and its earlier instance is fenced."""
    info = await context.stream(stream, name, "write")
    if form.writer is not None:
        check_writer_id(form.writer)
    opened = await context.run(_open_in_store, context, info, form)
    if form.writer is not None:
        context.backend.wake()
    return JsonResponse(save_opened(opened))


@ROUTES.post("/streams/{stream}/writers/idle", response_model=DoneView)
@needs("write")
async def idle(context: Context, stream: StreamId, form: WriterPositionForm, name: StreamName = None) -> JsonResponse:
    """Mark a writer as idle: the watermark does not wait for it."""
    info = await context.stream(stream, name, "write")
    await context.run(context.backend.registry.idle, info, _author(form), load_position(form.position))
    context.backend.wake()
    return JsonResponse({})


@ROUTES.post("/streams/{stream}/writers/close", response_model=DoneView)
@needs("write")
async def close(context: Context, stream: StreamId, form: WriterPositionForm, name: StreamName = None) -> JsonResponse:
    """Close a writer: it writes no more."""
    info = await context.stream(stream, name, "write")
    await context.run(context.backend.registry.close, info, _author(form), load_position(form.position))
    context.backend.wake()
    return JsonResponse({})


def _author(form: WriterPositionForm) -> Author:
    return Author(form.writer, form.instance)


def _mark_request(info: StreamInfo, form: MarkForm) -> MarkRequest:
    return MarkRequest(info, _author(form), form.key, form.time, load_position(form.position))


def _result_view(result: OutcomeOrError) -> dict[str, object]:
    if isinstance(result, FloodmarkError):
        return {"outcome": None, "error": save_error(result)}
    return {"outcome": result.value, "error": None}


def _open_in_store(context: RequestContext, info: StreamInfo, form: OpenWriterForm) -> OpenedWriter:
    """Open a writer for current keys of the stream; the watermark would wait forever for an unknown key."""
    current = context.backend.catalog.refresh(info)
    keys = current.settings.keys if form.keys is None else [current.settings.key(key) for key in form.keys]
    return context.backend.registry.open(current, form.writer, dict.fromkeys(keys))


# Any other request takes the route `note`, which reports what is wrong with it.
_MARKS_PATH: Final = re.compile(r"/v1/streams/(0|[1-9][0-9]{0,18})/marks")
_JSON_TYPE: Final = b"application/json"
_RESPONSE_START: Final = {"type": "http.response.start", "status": 200}
_OUTCOME_BODIES: Final = {outcome: JsonResponse({"outcome": outcome.value}).body for outcome in MarkOutcome}


class MarkFastPath:
    """Answers requests with one mark, and passes all others on."""

    __slots__ = ("_others",)

    def __init__(self, others: ASGIApp) -> None:
        """Pass other requests to this application."""
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = _MARKS_PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        stream = -1 if path is None else int(path[1])
        if not 0 <= stream <= INT64_MAX or (b"content-type", _JSON_TYPE) not in scope["headers"]:
            await self._others(scope, receive, send)
            return
        try:
            outcome = await _note_mark_fast(scope[CONTEXT_KEY], stream, scope["query_string"], receive)
        except FloodmarkError as error:
            outcome = error
        if isinstance(outcome, FloodmarkError):
            response: Response = error_response(outcome)
            await response(scope, receive, send)
            return
        body = _OUTCOME_BODIES[outcome]
        headers = [(b"content-type", _JSON_TYPE), (b"content-length", str(len(body)).encode())]
        await send({**_RESPONSE_START, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _note_mark_fast(context: RequestContext, stream: int, query: bytes, receive: Receive) -> OutcomeOrError:
    is_cached = context.backend.catalog.cached(stream) is not None
    info = await context.stream(stream, None if is_cached else _name_in_query(query), "write")
    form = await parse_form(context, MarkForm, await _read_body(receive))
    (outcome,) = await context.marks.note([_mark_request(info, form)])
    return outcome


def _name_in_query(query: bytes) -> str | None:
    """Return the stream's name from the query, which is used only if the stream does not exist."""
    names = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("name")
    return None if names is None else names[-1]


async def _read_body(receive: Receive) -> bytearray:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body
