"""Events: append, read, ends of segments; and transactions, which write all of their events or none."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from floodmark._util.ints import INT64_MAX, check_watermark
from floodmark.errors import EventInvalid, OffsetOutOfRange
from floodmark.service.context import Context, RequestContext, StreamId, StreamName
from floodmark.service.forms import FormRoute, needs
from floodmark.service.messages import (
    AuthorForm,
    DoneView,
    Form,
    Int64,
    JsonResponse,
    MarkOutcomeValue,
    Name,
    bad_request,
)
from floodmark.streams import Chunk, StreamInfo
from floodmark.streams.events import Events, schema_of
from floodmark.streams.layout.positions import save_position
from floodmark.streams.ports import Author
from floodmark.streams.remote.wire import ARROW, ChunkPacker, save_commit, unpack_events


class EndsView(BaseModel):
    """The end offset of each segment."""

    ends: dict[str, int]


class BoundsView(EndsView):
    """The end offset of each segment, and the start of those from which retention has removed events."""

    starts: dict[str, int]


ROUTES = APIRouter(tags=["events"], route_class=FormRoute)

_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
EVENTS_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": {ARROW: _BINARY}}}
"""The OpenAPI description of a body with events."""

Offset = Annotated[int, Query(ge=0, le=INT64_MAX)]
WriterId = Annotated[str, Query(min_length=1, max_length=200)]


@ROUTES.get("/streams/{stream}/ends", response_model=BoundsView)
async def show_ends(context: Context, stream: StreamId, name: StreamName = None) -> JsonResponse:
    """Return the end offset of each segment, sealed ones included, and the starts of segments with removed events."""
    info = await context.stream(stream, name, "read")
    log = context.backend.log

    def work() -> dict[str, object]:
        return {"ends": save_position(log.ends(info)), "starts": save_position(log.starts(info))}

    return await context.answer(work)


@ROUTES.post("/streams/{stream}/events", response_model=EndsView, openapi_extra=EVENTS_BODY)
async def append(
    context: Context,
    request: Request,
    stream: StreamId,
    writer: WriterId,
    instance: Offset,
    first: Annotated[int, Query(ge=0, le=INT64_MAX, description="The writer's number of the first event.")],
    name: StreamName = None,
) -> JsonResponse:
    """Append events, each once. The last column of a batch is the position of each key in the key space [0, 1)."""
    info = await context.stream(stream, name, "write")
    body = await read_arrow_body(request)

    def work() -> dict[int, int]:
        events = _unpack(context, info, body)
        return context.backend.log.append(info, Author(writer, instance), first, events)

    return JsonResponse({"ends": save_position(await context.run(work))})


@ROUTES.get(
    "/streams/{stream}/segments/{segment}/events",
    response_class=Response,
    responses={200: {"content": {ARROW: _BINARY}}},
)
async def read(
    context: Context,
    stream: StreamId,
    segment: Annotated[int, Path(ge=0, le=INT64_MAX)],
    start: Offset,
    end: Offset,
    name: StreamName = None,
) -> Response:
    """Return the events of a segment from offset `start` to before `end`, as far as they exist.

    The metadata of each batch holds the offset of its first event, as `first`.
    """
    info = await context.stream(stream, name, "read")
    if end < start:
        raise OffsetOutOfRange(
            f"Segment {segment} cannot be read from {start} to {end}.",
            rule="The end of a range is not below its start.",
            remedy="Take the offsets from /ends, from a cut, or from a batch that was read.",
            segment=segment,
            start=start,
            end=end,
        )
    chunks = await context.run(_open_chunks, context, info, segment, start, end)
    # Read the first chunk before the response begins, so that an error still gets its own status.
    first = await context.run(next, chunks, None)
    return StreamingResponse(_packed_chunks(context, info, chunks, first), media_type=ARROW)


def _unpack(context: RequestContext, info: StreamInfo, body: bytes) -> Events:
    """Return the events of a request; another service may just have added columns to the stream."""
    try:
        return unpack_events(body, schema_of(info), info.settings.first_columns)
    except EventInvalid:
        current = context.backend.catalog.refresh(info)
        if len(schema_of(current)) == len(schema_of(info)):
            raise
        return unpack_events(body, schema_of(current), current.settings.first_columns)


def _open_chunks(context: RequestContext, info: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
    info = context.backend.catalog.refresh(info)
    info.layout.segment(segment)
    return context.backend.log.read(info, segment, start, end)


async def _packed_chunks(
    context: RequestContext, info: StreamInfo, chunks: Iterator[Chunk], first: Chunk | None
) -> AsyncIterator[bytes]:
    packer = ChunkPacker(schema_of(info) if first is None else first.batch.schema)

    def next_piece() -> bytes | None:
        chunk = next(chunks, None)
        return None if chunk is None else packer.pack(chunk)

    if first is not None:
        yield await context.run(packer.pack, first)
        while (packed := await context.run(next_piece)) is not None:
            yield packed
    yield packer.end()


async def read_arrow_body(request: Request) -> bytes:
    """Return the body of a request with events; refuse another content type."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != ARROW:
        raise bad_request(f"The content type is {content_type!r:.100}.", f"Send an Arrow IPC stream as {ARROW}.")
    return await request.body()


class NewTransactionForm(AuthorForm):
    """A transaction to begin. With an id chosen by the client the request is idempotent."""

    transaction: Annotated[str, Field(pattern=r"^[A-Za-z0-9_\-]{1,64}$")] | None = None
    timeout: Annotated[int, Field(ge=1, le=10**15)] | None = None


class CommitForm(Form):
    """A commit, and the marks to note with it: a time for each of some keys, or one key and its time."""

    times: dict[Name, Int64] = Field(default_factory=dict)
    key: Name | None = None
    time: Int64 | None = None


class TransactionView(BaseModel):
    """The id of a transaction."""

    transaction: str


class TransactionStateView(BaseModel):
    """The state of a transaction."""

    state: Literal["open", "committing", "committed", "aborting", "aborted"]


class CommitView(BaseModel):
    """The result of a commit: the position behind its events, and the outcome of the mark of each key.

    `outcome` sums them up: accepted, or the first that was refused; null without a mark.
    """

    position: dict[str, int]
    outcome: MarkOutcomeValue | None
    outcomes: dict[str, MarkOutcomeValue]


TRANSACTION_ROUTES = APIRouter(prefix="/streams/{stream}/transactions", tags=["transactions"], route_class=FormRoute)

TransactionId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]


@TRANSACTION_ROUTES.post("", response_model=TransactionView, status_code=201)
@needs("write")
async def begin(context: Context, stream: StreamId, form: NewTransactionForm, name: StreamName = None) -> JsonResponse:
    """Begin a transaction."""
    info = await context.stream(stream, name, "write")
    author = Author(form.writer, form.instance)
    begin = context.backend.transactions.begin
    transaction = await context.run(begin, info, author, form.timeout, transaction=form.transaction)
    return JsonResponse({"transaction": transaction}, status_code=201)


@TRANSACTION_ROUTES.get("/{transaction}", response_model=TransactionStateView)
async def show_state(
    context: Context, stream: StreamId, transaction: TransactionId, name: StreamName = None
) -> JsonResponse:
    """Return the state of a transaction."""
    info = await context.stream(stream, name, "write")
    state = await context.run(context.backend.transactions.state, info, transaction)
    return JsonResponse({"state": state.value})


@TRANSACTION_ROUTES.put("/{transaction}/parts/{part}", response_model=DoneView, openapi_extra=EVENTS_BODY)
async def add_part(
    context: Context,
    request: Request,
    stream: StreamId,
    transaction: TransactionId,
    part: Annotated[int, Path(ge=0, le=INT64_MAX, description="Parts are committed in the order of their numbers.")],
    name: StreamName = None,
) -> JsonResponse:
    """Stage events until their transaction is committed. Sending a part again is idempotent."""
    info = await context.stream(stream, name, "write")
    body = await read_arrow_body(request)
    await context.run(
        lambda: context.backend.log.add(info, transaction, part, _unpack(context, info, body)),
    )
    return JsonResponse({})


@TRANSACTION_ROUTES.post("/{transaction}/request", response_model=DoneView)
@needs("write")
async def request_commit(
    context: Context, stream: StreamId, transaction: TransactionId, form: CommitForm, name: StreamName = None
) -> JsonResponse:
    """Request a commit. It will be carried out after the writer's earlier requests, even if the client dies."""
    info = await context.stream(stream, name, "write")
    if (form.key is None) != (form.time is None):
        raise bad_request("A commit has a key without a time, or a time without a key.", "Send both, or neither.")
    if form.key is not None and form.times:
        raise bad_request("A commit has a key and times.", "Send all keys in times.")
    times = form.times if form.key is None or form.time is None else {form.key: form.time}
    if times:
        current = await context.run(context.backend.catalog.refresh, info)
        times = {current.settings.key(key): check_watermark(time, "time") for key, time in times.items()}
    await context.run(context.backend.transactions.request, info, transaction, times)
    return JsonResponse({})


@TRANSACTION_ROUTES.post("/{transaction}/finish", response_model=CommitView)
async def finish(
    context: Context, stream: StreamId, transaction: TransactionId, name: StreamName = None
) -> JsonResponse:
    """Carry out a requested commit and return its result."""
    info = await context.stream(stream, name, "write")
    result = await context.run(context.backend.transactions.finish, info, transaction)
    context.backend.wake()
    return JsonResponse(save_commit(result))


@TRANSACTION_ROUTES.post("/{transaction}/abort", response_model=DoneView)
async def abort(
    context: Context, stream: StreamId, transaction: TransactionId, name: StreamName = None
) -> JsonResponse:
    """Abort a transaction."""
    info = await context.stream(stream, name, "write")
    await context.run(context.backend.transactions.abort, info, transaction)
    return JsonResponse({})
