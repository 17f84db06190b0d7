"""Requests of a wrong form, and paths that are none: refused in the form of all errors."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from floodmark.errors import FloodmarkError, RequestInvalid, UnknownName
from floodmark.service._desk import bad_request
from floodmark.service._statuses import failed, refusal

_SHOWN = 3


def handle_errors(app: FastAPI) -> None:
    """Let an application answer all errors in one form."""
    app.add_exception_handler(FloodmarkError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_form)
    app.add_exception_handler(HTTPException, _refuse_path)
    # It is raised again after the answer, and the guard writes it down.
    app.add_exception_handler(Exception, _fail)


def explain(errors: Sequence[Any]) -> RequestInvalid:
    """Return the error for a request with values that are wrong, which says where they are, and not what they are.

    >>> print(explain([{"loc": ("body", "time"), "msg": "Field required"}]).fact)
    The request is wrong: body.time: Field required.
    """
    if any(one.get("type") == "json_invalid" for one in errors):
        errors = [{"loc": ("body",), "msg": "It is no JSON"}]
    told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in errors]
    more = f" and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    return bad_request(
        f"The request is wrong: {'; '.join(told[:_SHOWN])}{more}.",
        "Correct it.",
        places=[".".join(map(str, one["loc"])) for one in errors],
    )


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, FloodmarkError)
    return refusal(error)


async def _fail(request: Request, error: Exception) -> Response:
    return refusal(failed())


async def _refuse_form(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return refusal(explain(error.errors()))


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, FloodmarkError):
        # What the guard says of a body, FastAPI wraps up as something that cannot be read.
        return refusal(error.__cause__)
    if error.status_code == 404:
        unknown = UnknownName(
            f"There is no {request.url.path!r:.200}.",
            rule="The paths are those that /v1/openapi.json describes.",
            remedy="Check the path.",
            path=request.url.path,
        )
        return refusal(unknown)
    told = bad_request(f"{request.method} {request.url.path!r:.200}: {error.detail}.", "Check method, path and body.")
    return refusal(told, error.status_code, dict(error.headers or {}))
