"""Which status of HTTP each error has, and the answer that carries it."""

import json
from typing import Any, Final

from starlette.responses import Response

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
from floodmark.streams.remote._refusals import save_error

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
"""An error has the status of its class, or of the nearest class above it."""

RETRY_SECONDS: Final = 1


class Json(Response):
    """An answer in JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the content as text."""
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def status_of(error: FloodmarkError) -> int:
    """Return the status of an error.

    >>> from floodmark.errors import UnknownStream
    >>> status_of(UnknownStream("There is none.", rule="So.", remedy="Make it."))
    404
    """
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def refusal(error: FloodmarkError, status: int | None = None, headers: dict[str, str] | None = None) -> Json:
    """Return the answer that tells an error."""
    code = status_of(error) if status is None else status
    more = dict(headers or {})
    if code == 401:
        more["WWW-Authenticate"] = 'Bearer realm="floodmark"'
    elif code == 503:
        more["Retry-After"] = str(RETRY_SECONDS)
    elif code in (408, 413):
        # What is left of the body is not read.
        more["Connection"] = "close"
    return Json(save_error(error), status_code=code, headers=more)


def failed() -> ServiceFailed:
    """Return the error for what was not expected. What it was is in the log of the service, and nowhere else."""
    return ServiceFailed(
        "The service met with something that it did not expect.",
        rule="Whatever a request asks for, it is done, or refused with a reason.",
        remedy="Look in the log of the service; whether the request was carried out is not known.",
    )
