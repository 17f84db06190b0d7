"""Marks by the short way: what is asked for most often does not pass through all that the other routes need.

The long way, in `_writer_routes`, is there for the OpenAPI document, and says and does the same.
"""

import re
from typing import Final
from urllib.parse import parse_qs

from pydantic import ValidationError
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from floodmark._util.ints import INT64_MAX
from floodmark.errors import FloodmarkError
from floodmark.service._desk import DESK, Desk
from floodmark.service._forms import MarkForm
from floodmark.service._statuses import Json, refusal
from floodmark.service._validation import explain
from floodmark.service._writer_routes import take_mark
from floodmark.streams import MarkOutcome

# What does not look exactly so takes the long way, where all that may be wrong with it is told.
_PATH: Final = re.compile(r"/v1/streams/(0|[1-9][0-9]{0,18})/marks")
_JSON: Final = b"application/json"
_START: Final = {"type": "http.response.start", "status": 200}
_ANSWERS: Final = {outcome: Json({"outcome": outcome.value}).body for outcome in MarkOutcome}


class QuickMarks:
    """Takes requests with a mark, and hands all others on."""

    __slots__ = ("_others",)

    def __init__(self, others: ASGIApp) -> None:
        """Hand them on to this application."""
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = _PATH.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        stream = -1 if path is None else int(path[1])
        if not 0 <= stream <= INT64_MAX or (b"content-type", _JSON) not in scope["headers"]:
            await self._others(scope, receive, send)
            return
        try:
            settled = await _take(scope[DESK], stream, scope["query_string"], await _body(receive))
        except FloodmarkError as error:
            settled = error
        if isinstance(settled, FloodmarkError):
            response: Response = refusal(settled)
            await response(scope, receive, send)
            return
        body = _ANSWERS[settled]
        headers = [(b"content-type", _JSON), (b"content-length", str(len(body)).encode())]
        await send({**_START, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _take(desk: Desk, stream: int, query: bytes, body: bytearray) -> MarkOutcome | FloodmarkError:
    try:
        form = MarkForm.model_validate_json(body)
    except ValidationError as error:
        return explain([{**one, "loc": ("body", *one["loc"])} for one in error.errors(include_url=False)])
    is_known = desk.backend.catalog.cached(stream) is not None
    return await take_mark(desk, stream, None if is_known else _name(query), form)


def _name(query: bytes) -> str | None:
    """Return what the stream is called by who asks, which matters only if it is not known here."""
    names = parse_qs(query.decode("latin-1"), keep_blank_values=True).get("name")
    return None if names is None else names[-1]


async def _body(receive: Receive) -> bytearray:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return body
