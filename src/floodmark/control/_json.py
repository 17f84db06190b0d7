"""Values that are kept as JSON text: what goes in comes out equal, or is refused."""

import json
from typing import Any

from floodmark.errors import NotJson

JsonValue = Any
"""None, a truth value, a number, a string, or a list or a dict with string keys of such."""


def to_json(value: JsonValue, what: str) -> str:
    """Return `value` as text, or refuse it.

    >>> to_json({"delay": 5, "per": ["topic"]}, "settings")
    '{"delay":5,"per":["topic"]}'
    >>> to_json(float("nan"), "settings")
    Traceback (most recent call last):
    floodmark.errors.NotJson: The settings cannot be written as JSON: ... [not-json]
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        # Half of a surrogate pair passes as a string and is refused only when it is stored.
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(
            f"The {what} cannot be written as JSON: {error}.",
            rule="What is kept consists of None, truth values, finite numbers, strings, lists and dicts of such.",
            remedy="Convert it first, for example a time to microseconds since the epoch.",
            what=what,
        ) from error
    return text


def from_json(text: str) -> JsonValue:
    """Return the value that `text` was made of.

    >>> from_json('{"delay":5}')
    {'delay': 5}
    """
    return json.loads(text)
