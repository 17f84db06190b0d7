"""Events: written, read, and how far they go."""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from floodmark._util.ints import INT64_MAX
from floodmark.errors import OffsetOutOfRange
from floodmark.service._desk import Desk, DeskOf, StreamId, StreamName, bad_request
from floodmark.service._forms import EndsView
from floodmark.service._statuses import Json
from floodmark.streams import Author, Chunk, StreamInfo
from floodmark.streams._log_rows import schema_of
from floodmark.streams._positions import save_position
from floodmark.streams.remote._arrow import ARROW, ChunkPacker, unpack_events

ROUTES = APIRouter(tags=["events"])

_BINARY: Final = {"schema": {"type": "string", "format": "binary"}}
EVENTS_BODY: Final[dict[str, Any]] = {"requestBody": {"required": True, "content": {ARROW: _BINARY}}}
"""What the OpenAPI document says of a body with events."""

Offset = Annotated[int, Query(ge=0, le=INT64_MAX)]
Writer = Annotated[str, Query(min_length=1, max_length=200)]


@ROUTES.get("/streams/{stream}/ends", response_model=EndsView)
async def show_ends(desk: DeskOf, stream: StreamId, name: StreamName = None) -> Json:
    """Return how far each segment is filled, sealed ones included."""
    info = await desk.stream(stream, name, "read")
    return Json({"ends": save_position(await desk.run(desk.backend.log.ends, info))})


@ROUTES.post("/streams/{stream}/events", response_model=EndsView, openapi_extra=EVENTS_BODY)
async def append(
    desk: DeskOf,
    request: Request,
    stream: StreamId,
    writer: Writer,
    instance: Offset,
    first: Annotated[int, Query(ge=0, le=INT64_MAX, description="The writer's own number of the first event.")],
    name: StreamName = None,
) -> Json:
    """Keep events, each once. The last column of the batches is where the key of each event lies, from 0 to below 1."""
    info = await desk.stream(stream, name, "write")
    body = await arrow_body(request)

    def work() -> dict[int, int]:
        events = unpack_events(body, schema_of(info))
        return desk.backend.log.append(info, Author(writer, instance), first, events)

    return Json({"ends": save_position(await desk.run(work))})


@ROUTES.get(
    "/streams/{stream}/segments/{segment}/events",
    response_class=Response,
    responses={200: {"content": {ARROW: _BINARY}}},
)
async def read(
    desk: DeskOf,
    stream: StreamId,
    segment: Annotated[int, Path(ge=0, le=INT64_MAX)],
    start: Offset,
    end: Offset,
    name: StreamName = None,
) -> Response:
    """Return the events of a segment from one offset to before another, as far as they are there.

    Each batch says in its metadata, as `first`, which offset its first event has.
    """
    info = await desk.stream(stream, name, "read")
    if end < start:
        raise OffsetOutOfRange(
            f"Events of segment {segment} were to be read from {start} to {end}.",
            rule="A segment is read forward.",
            remedy="Take offsets from ends, a cut, or a chunk that was read.",
            segment=segment,
            start=start,
            end=end,
        )
    chunks = await desk.run(_begin, desk, info, segment, start, end)
    # The first one is looked for before the answer begins: afterwards its status could not tell of an error.
    first = await desk.run(next, chunks, None)
    return StreamingResponse(_packed(desk, info, chunks, first), media_type=ARROW)


def _begin(desk: Desk, info: StreamInfo, segment: int, start: int, end: int) -> Iterator[Chunk]:
    if segment >= len(info.layout.segments):
        info = desk.backend.catalog.refresh(info)
    info.layout.segment(segment)
    return desk.backend.log.read(info, segment, start, end)


async def _packed(desk: Desk, info: StreamInfo, chunks: Iterator[Chunk], first: Chunk | None) -> AsyncIterator[bytes]:
    packer = ChunkPacker(schema_of(info))

    def piece() -> bytes | None:
        chunk = next(chunks, None)
        return None if chunk is None else packer.pack(chunk)

    if first is not None:
        yield packer.pack(first)
        while (packed := await desk.run(piece)) is not None:
            yield packed
    yield packer.end()


async def arrow_body(request: Request) -> bytes:
    """Return the body of a request with events, or refuse one that is something else."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != ARROW:
        raise bad_request(f"The content type is {kind!r:.100}.", f"Send an Arrow IPC stream as {ARROW}.")
    return await request.body()
