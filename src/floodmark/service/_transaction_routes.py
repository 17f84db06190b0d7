"""Transactions: begun, filled, asked to commit, finished or given up."""

from typing import Annotated

from fastapi import APIRouter, Path
from starlette.requests import Request

from floodmark._util.ints import INT64_MAX, check_watermark
from floodmark.service._desk import DeskOf, StreamId, StreamName, bad_request
from floodmark.service._event_routes import EVENTS_BODY, arrow_body
from floodmark.service._forms import CommitForm, CommitView, Done, NewTransaction, StateView, TransactionView
from floodmark.service._statuses import Json
from floodmark.streams import Author
from floodmark.streams._log_rows import schema_of
from floodmark.streams.remote._arrow import unpack_events
from floodmark.streams.remote._forms import save_commit

ROUTES = APIRouter(prefix="/streams/{stream}/transactions", tags=["transactions"])

TransactionId = Annotated[str, Path(pattern=r"^[A-Za-z0-9_\-]{1,64}$")]


@ROUTES.post("", response_model=TransactionView, status_code=201)
async def begin(desk: DeskOf, stream: StreamId, form: NewTransaction, name: StreamName = None) -> Json:
    """Begin a transaction."""
    info = await desk.stream(stream, name, "write")
    author = Author(form.writer, form.instance)
    begin = desk.backend.transactions.begin
    transaction = await desk.run(begin, info, author, form.timeout, transaction=form.transaction)
    return Json({"transaction": transaction}, status_code=201)


@ROUTES.get("/{transaction}", response_model=StateView)
async def show_state(desk: DeskOf, stream: StreamId, transaction: TransactionId, name: StreamName = None) -> Json:
    """Return where a transaction is."""
    info = await desk.stream(stream, name, "write")
    state = await desk.run(desk.backend.transactions.state, info, transaction)
    return Json({"state": state.value})


@ROUTES.put("/{transaction}/parts/{part}", response_model=Done, openapi_extra=EVENTS_BODY)
async def add_part(
    desk: DeskOf,
    request: Request,
    stream: StreamId,
    transaction: TransactionId,
    part: Annotated[int, Path(ge=0, le=INT64_MAX, description="The parts are kept in the order of their numbers.")],
    name: StreamName = None,
) -> Json:
    """Keep events apart until their transaction is committed. A part that comes twice is kept once."""
    info = await desk.stream(stream, name, "write")
    body = await arrow_body(request)
    await desk.run(
        lambda: desk.backend.log.add(info, transaction, part, unpack_events(body, schema_of(info))),
    )
    return Json({})


@ROUTES.post("/{transaction}/request", response_model=Done)
async def request_commit(
    desk: DeskOf, stream: StreamId, transaction: TransactionId, form: CommitForm, name: StreamName = None
) -> Json:
    """Ask for a commit. From here on it comes, after those that were asked for before."""
    info = await desk.stream(stream, name, "write")
    if (form.key is None) != (form.time is None):
        raise bad_request("A commit has a key without a time, or a time without a key.", "Give both, or neither.")
    if form.key is not None:
        current = await desk.run(desk.backend.catalog.refresh, info)
        current.settings.key(form.key)
    if form.time is not None:
        check_watermark(form.time, "time")
    await desk.run(desk.backend.transactions.request, info, transaction, form.key, form.time)
    return Json({})


@ROUTES.post("/{transaction}/finish", response_model=CommitView)
async def finish(desk: DeskOf, stream: StreamId, transaction: TransactionId, name: StreamName = None) -> Json:
    """Commit a transaction for which that was asked, and return what it came to."""
    info = await desk.stream(stream, name, "write")
    result = await desk.run(desk.backend.transactions.finish, info, transaction)
    desk.backend.wake()
    return Json(save_commit(result))


@ROUTES.post("/{transaction}/abort", response_model=Done)
async def abort(desk: DeskOf, stream: StreamId, transaction: TransactionId, name: StreamName = None) -> Json:
    """Give a transaction up."""
    info = await desk.stream(stream, name, "write")
    await desk.run(desk.backend.transactions.abort, info, transaction)
    return Json({})
