"""JSON bodies: checked for scope before they are read, limited, and parsed in a worker if they are large.

An endpoint that takes a `Form` declares its scope with `needs`, and belongs to a router with `route_class=FormRoute`.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar, get_type_hints

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from floodmark._util.ints import INT64_MAX
from floodmark.control import Scope
from floodmark.errors import RequestTooLarge
from floodmark.service.context import CONTEXT_KEY, RequestContext
from floodmark.service.messages import Form, describe_invalid_fields

AnyForm = TypeVar("AnyForm", bound=Form)
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

MAX_VALUES: Final[dict[bytes, int]] = {b",": 100_000, b":": 30_000, b"[": 30_000, b"{": 30_000}
"""How often each of these characters may occur in a body.

They bound the values, members, lists and objects, on which the time to parse and to check a body depends far more than
on its size. To count a character inside of a text too does no harm: the limits are far above what a request has.
"""

_SMALL: Final = 16 * 1024
"""A body of up to so many bytes is parsed at once: to hand it to a worker takes longer."""

_SCOPE: Final = "_floodmark_scope"


def needs(scope: Scope) -> Callable[[Endpoint], Endpoint]:
    """Declare the scope that is checked before the body of a request to this endpoint is read.

    It is checked for the stream in the path; without one, the token must have the scope for some stream, and the
    endpoint itself checks the streams that the body names.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _SCOPE, scope)
        return endpoint

    return declare


class FormRoute(APIRoute):
    """A route whose endpoint may take a `Form`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a request."""
        handle = super().get_route_handler()
        kind = _form_of(self.endpoint)
        if kind is None:
            return handle
        scope: Scope = getattr(self.endpoint, _SCOPE)

        async def check_and_handle(request: Request) -> Response:
            context: RequestContext = request.scope[CONTEXT_KEY]
            context.allow_some(scope)
            stream = stream_number(request.path_params.get("stream", ""))
            if stream is not None:
                await context.stream(stream, request.query_params.get("name"), scope)
            return await handle(_FormRequest(request, kind))

        return check_and_handle


class _FormRequest(Request):
    """A request whose JSON is already checked: FastAPI takes a form as it is."""

    def __init__(self, request: Request, kind: type[Form]) -> None:
        super().__init__(request.scope, request.receive)
        self._kind = kind

    async def json(self) -> Form:
        context: RequestContext = self.scope[CONTEXT_KEY]
        return await parse_form(context, self._kind, await self.body())


async def parse_form(context: RequestContext, kind: type[AnyForm], body: bytes | bytearray) -> AnyForm:
    """Return the form in a JSON body within the limits; see `parse_now`."""
    check_values(body)
    if len(body) <= _SMALL:
        return parse_now(kind, body)
    return await context.run(parse_now, kind, body)


def check_values(body: bytes | bytearray) -> None:
    """Raise `RequestTooLarge` for a JSON body with too many values."""
    for character, most in MAX_VALUES.items():
        if len(body) > most and body.count(character) > most:
            raise RequestTooLarge(
                f"The request has more than {most} of the character {character.decode()!r}.",
                rule="A JSON body has at most "
                + ", ".join(f"{number} {character.decode()!r}" for character, number in MAX_VALUES.items())
                + ".",
                remedy="Split it into smaller requests.",
                most=most,
            )


def stream_number(text: str) -> int | None:
    """Return the id of a stream in a path, or None for any other text.

    >>> stream_number("17"), stream_number("x"), stream_number(str(2**63))
    (17, None, None)
    """
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(INT64_MAX))
    return int(text) if is_number and int(text) <= INT64_MAX else None


def parse_now(kind: type[AnyForm], body: bytes | bytearray) -> AnyForm:
    """Return the form in a JSON body, or raise an error that names the invalid fields."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        raise describe_invalid_fields([{**problem, "loc": ("body", *problem["loc"])} for problem in problems]) from None


def _form_of(endpoint: Callable[..., Any]) -> type[Form] | None:
    hints = get_type_hints(endpoint).values()
    return next((hint for hint in hints if isinstance(hint, type) and issubclass(hint, Form)), None)
