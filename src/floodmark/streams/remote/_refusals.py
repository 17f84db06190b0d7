"""Errors on their way from a service to its client, where the same one is raised."""

from collections.abc import Mapping
from typing import Any, Final

from floodmark import errors
from floodmark.errors import FloodmarkError, InvalidValue, StateError, UnknownName
from floodmark.streams.remote._values import from_wire, to_wire

_CLASSES: Final[dict[str, type[FloodmarkError]]] = {
    kind.code: kind for kind in (getattr(errors, name) for name in errors.__all__)
}


def save_error(error: FloodmarkError) -> dict[str, Any]:
    """Return an error as JSON values.

    >>> save_error(UnknownStream("There is none.", rule="So.", remedy="Make it.", stream="x"))["code"]
    'unknown-stream'
    """
    return {
        "code": error.code,
        "fact": error.fact,
        "rule": error.rule,
        "remedy": error.remedy,
        "fields": {name: to_wire(value) for name, value in error.fields.items()},
    }


def load_error(saved: Mapping[str, Any], status: int) -> FloodmarkError:
    """Return the error that was saved. One that only a newer release knows is told by its status, and has its code.

    >>> print(load_error({"code": "conflict", "fact": "A.", "rule": "B.", "remedy": "C.", "fields": {}}, 409))
    A. B. C. [conflict]
    >>> type(load_error({"code": "new", "fact": "A.", "rule": "B.", "remedy": "C.", "fields": {}}, 404)).__name__
    'UnknownName'
    """
    fields = {str(name): from_wire(value) for name, value in saved["fields"].items()}
    kind = _CLASSES.get(saved["code"])
    if kind is None:
        kind = UnknownName if status == 404 else InvalidValue if status in (400, 413, 422) else StateError
        fields["code"] = saved["code"]
    for reserved in ("fact", "rule", "remedy", "self"):
        fields.pop(reserved, None)
    return kind(str(saved["fact"]), rule=str(saved["rule"]), remedy=str(saved["remedy"]), **fields)
