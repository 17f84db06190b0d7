"""Requests to a service, and the paths they go to."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from floodmark.streams._catalog import StreamInfo

VERSION: Final = "/v1"
STREAMS: Final = f"{VERSION}/streams"
JSON: Final = "application/json"

Query = Mapping[str, str | int | None]


@dataclass(frozen=True, slots=True)
class Request:
    """One request. It may be sent several times, so what it asks for must be the same when it is done twice."""

    method: str
    path: str
    query: Query = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON

    @classmethod
    def about(
        cls,
        stream: StreamInfo,
        method: str,
        *parts: str | int,
        query: Query | None = None,
        value: Any = None,
        body: Any = None,
        content_type: str = JSON,
    ) -> "Request":
        """Return a request about a stream, with a JSON value or another body.

        The path has the stream's id, since names have slashes, and may pass to another stream. The name goes along
        for the case that the stream is gone: the refusal then says which it was.
        """
        path = "/".join([STREAMS, str(stream.id), *map(str, parts)])
        sent = body if value is None else json.dumps(value)
        return cls(method, path, {**(query or {}), "name": stream.name}, sent, content_type)
