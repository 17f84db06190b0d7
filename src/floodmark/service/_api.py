"""The API: all routes, made once for all homes that this process serves."""

from functools import cache
from importlib.metadata import version
from typing import Any, Final

from fastapi import FastAPI

from floodmark.service import (
    _catalog_routes,
    _entry_routes,
    _event_routes,
    _group_routes,
    _home_routes,
    _transaction_routes,
    _writer_routes,
)
from floodmark.service._forms import Refusal
from floodmark.service._validation import handle_errors
from floodmark.streams.remote._requests import VERSION

_ROUTES: Final = (
    # What is asked for most often comes first.
    _writer_routes.ROUTES,
    _event_routes.ROUTES,
    _entry_routes.ROUTES,
    _group_routes.ROUTES,
    _transaction_routes.ROUTES,
    _catalog_routes.ROUTES,
    _home_routes.ROUTES,
)
_ABOUT: Final = "Streams whose writers note time, and the watermark that follows from their marks."
_REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": Refusal, "description": "Why it was not done."}
}


@cache
def api() -> FastAPI:
    """Return the application that has all routes. Which home a request is for is in the scope of the request.

    >>> "/v1/streams" in api().openapi()["paths"]
    True
    """
    made = FastAPI(
        title="Floodmark",
        version=version("floodmark"),
        description=_ABOUT,
        openapi_url=f"{VERSION}/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_REFUSALS,
    )
    for routes in _ROUTES:
        made.include_router(routes, prefix=VERSION)
    handle_errors(made)
    return made
