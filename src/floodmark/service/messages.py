"""What all requests and responses share: field types, JSON, and errors with their HTTP status."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from floodmark._util.ints import INT64_MAX, INT64_MIN
from floodmark.errors import (
    FloodmarkError,
    HomeBusy,
    HomeClosed,
    HomeMissing,
    HomeNewer,
    HomeUnusable,
    HostRefused,
    InvalidValue,
    MissingPackage,
    NotAllowed,
    RequestInvalid,
    RequestTimedOut,
    RequestTooLarge,
    ServiceBusy,
    ServiceFailed,
    ServiceUnavailable,
    StateError,
    TokenRefused,
    UnknownName,
)
from floodmark.streams.remote.wire import save_error

Int64 = Annotated[int, Field(ge=INT64_MIN, le=INT64_MAX, strict=True)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX, strict=True)]
Micros = Annotated[int, Field(ge=0, le=10**15, strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=200, strict=True)]
SegmentId = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,17})$")]
Position = Annotated[dict[SegmentId, Int64], Field(examples=[{"0": 100}], description="The offset in each segment.")]
MarkOutcomeValue = Literal["accepted", "time went back", "position went back"]


FailFast = Field(fail_fast=True)
"""For every list of a form: a list with many invalid items takes no longer than one with one."""


class Form(BaseModel):
    """A request body with exactly these fields, of exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class AuthorForm(Form):
    """A writer, and its instance: how many times the writer id has been opened."""

    writer: Name = Field(examples=["till-3"])
    instance: Int64


class ErrorView(BaseModel):
    """Why a request failed: the fact, the rule, the remedy, and the values involved."""

    code: str = Field(examples=["unknown-stream"])
    fact: str
    rule: str
    remedy: str
    fields: dict[str, Any]


class DoneView(BaseModel):
    """An empty answer: the request was carried out."""


STATUSES: Final[dict[type[FloodmarkError], int]] = {
    RequestInvalid: 400,
    TokenRefused: 401,
    NotAllowed: 403,
    HostRefused: 403,
    RequestTimedOut: 408,
    RequestTooLarge: 413,
    HomeBusy: 503,
    HomeClosed: 503,
    HomeMissing: 503,
    HomeNewer: 503,
    HomeUnusable: 503,
    ServiceBusy: 503,
    ServiceUnavailable: 503,
    ServiceFailed: 500,
    MissingPackage: 500,
    InvalidValue: 422,
    UnknownName: 404,
    StateError: 409,
    FloodmarkError: 500,
}
"""The status of an error is that of its class or nearest base class."""

RETRY_SECONDS: Final = 1


class JsonResponse(Response):
    """A JSON response without spaces."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encode the content."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def status_of(error: FloodmarkError) -> int:
    """Return the HTTP status of an error.

    >>> from floodmark.errors import UnknownStream
    >>> status_of(UnknownStream("There is none.", rule="So.", remedy="Make it."))
    404
    """
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def error_response(
    error: FloodmarkError, status: int | None = None, headers: dict[str, str] | None = None
) -> JsonResponse:
    """Return the response for an error."""
    code = status_of(error) if status is None else status
    more = dict(headers or {})
    if code == 401:
        more["WWW-Authenticate"] = 'Bearer realm="floodmark"'
    elif code == 503:
        more["Retry-After"] = str(RETRY_SECONDS)
    elif code in (408, 413):
        # The rest of the body is not read.
        more["Connection"] = "close"
    return JsonResponse(save_error(error), status_code=code, headers=more)


def unexpected_failure() -> ServiceFailed:
    """Return the error for an unexpected failure. The cause is only in the log of the service."""
    return ServiceFailed(
        "An unexpected error occurred in the service.",
        rule="The cause is written to the log of the service only; it is unknown whether the request was carried out.",
        remedy="Find the traceback in the log of the service at the time of this request.",
    )


def bad_request(fact: str, remedy: str, **fields: Any) -> RequestInvalid:
    """Return the error for a malformed request."""
    return RequestInvalid(fact, rule="Requests have the form that /v1/openapi.json describes.", remedy=remedy, **fields)


_SHOWN_FIELDS: Final = 3
_MOST_PLACES: Final = 100


def install_error_handlers(app: FastAPI) -> None:
    """Make an application answer all errors in one form."""
    app.add_exception_handler(FloodmarkError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_form)
    app.add_exception_handler(HTTPException, _answer_http_error)
    # Starlette raises it again after the response, and `Guard` logs it.
    app.add_exception_handler(Exception, _answer_unexpected)


def describe_invalid_fields(errors: Sequence[Any]) -> RequestInvalid:
    """Return the error for a request with invalid fields. It names the fields but not their values.

    >>> print(describe_invalid_fields([{"loc": ("body", "time"), "msg": "Field required"}]).fact)
    The request is invalid: body.time: Field required.
    """
    if any(error.get("type") == "json_invalid" for error in errors):
        errors = [{"loc": ("body",), "msg": "Not valid JSON"}]
    problems = [f"{_place_of(error)}: {error['msg']}" for error in errors[:_SHOWN_FIELDS]]
    more = f" and {len(errors) - _SHOWN_FIELDS} more" if len(errors) > _SHOWN_FIELDS else ""
    return bad_request(
        f"The request is invalid: {'; '.join(problems)}{more}.",
        "Change the named fields to the types that /v1/openapi.json gives for this path.",
        places=[_place_of(error) for error in errors[:_MOST_PLACES]],
    )


def _place_of(error: Any) -> str:
    return ".".join(f"{part!s:.100}" for part in error["loc"])


async def _answer_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, FloodmarkError)
    return error_response(error)


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    return error_response(unexpected_failure())


async def _answer_invalid_form(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(describe_invalid_fields(error.errors()))


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, FloodmarkError):
        # FastAPI wraps an error raised while the body is received.
        return error_response(error.__cause__)
    if error.status_code == 404:
        unknown = UnknownName(
            f"There is no path {request.url.path!r:.200}.",
            rule="The service has the paths that /v1/openapi.json lists.",
            remedy="Use one of these paths; each begins with /v1/.",
            path=request.url.path,
        )
        return error_response(unknown)
    fact = f"{request.method} {request.url.path!r:.200}: {error.detail}."
    refusal = bad_request(fact, "Use a method and body that /v1/openapi.json lists for this path.")
    return error_response(refusal, error.status_code, dict(error.headers or {}))
