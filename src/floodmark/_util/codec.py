"""Values that are stored and loaded: snapshots with a kind and a version, and JSON text."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from floodmark.errors import FloodmarkError, NotJson, SnapshotInvalid, SnapshotVersionUnknown

Snapshot = dict[str, Any]
"""What `snapshot()` returns: JSON values only, so that it can be stored anywhere."""

SNAPSHOT_VERSION = 1


def new_snapshot(kind: str, **state: Any) -> Snapshot:
    """Return a snapshot of this kind and the current version.

    >>> new_snapshot("tracker", origins=[])
    {'kind': 'tracker', 'version': 1, 'origins': []}
    """
    return {"kind": kind, "version": SNAPSHOT_VERSION, **state}


@contextmanager
def open_snapshot(snapshot: object, kind: str) -> Iterator[Mapping[str, Any]]:
    """Check kind and version; inside the block, missing or wrong fields raise SnapshotInvalid.

    >>> with open_snapshot({"kind": "tracker", "version": 99}, "tracker") as state:
    ...     pass
    Traceback (most recent call last):
    floodmark.errors.SnapshotVersionUnknown: The snapshot has version 99. ... [snapshot-version-unknown]
    """
    if not isinstance(snapshot, Mapping) or snapshot.get("kind") != kind:
        actual = snapshot.get("kind") if isinstance(snapshot, Mapping) else type(snapshot).__name__
        raise _snapshot_invalid(kind, f"it is of kind {actual!r}")
    if snapshot.get("version") != SNAPSHOT_VERSION:
        raise SnapshotVersionUnknown(
            f"The snapshot has version {snapshot.get('version')!r}.",
            rule=f"This release reads version {SNAPSHOT_VERSION} of a {kind} snapshot.",
            remedy="Restore it with the Floodmark release that wrote it.",
            found=snapshot.get("version"),
            expected=SNAPSHOT_VERSION,
        )
    try:
        yield snapshot
    except SnapshotInvalid:
        raise
    except (FloodmarkError, ValueError) as error:
        raise _snapshot_invalid(kind, f"a value is wrong: {error}") from error
    except (AttributeError, LookupError, TypeError, OverflowError) as error:
        raise _snapshot_invalid(kind, f"reading it failed with {error!r}") from error


def _snapshot_invalid(kind: str, why: str) -> SnapshotInvalid:
    return SnapshotInvalid(
        f"This is not a snapshot of a {kind}: {why}.",
        rule="A snapshot is restored exactly as it was written.",
        remedy="Pass the unchanged value that snapshot() returned.",
        kind=kind,
    )


JsonValue = Any
"""None, a bool, a number, a string, or a list or a dict with string keys of these."""


def to_json(value: JsonValue, what: str) -> str:
    """Return `value` as JSON text, or raise NotJson.

    >>> to_json({"delay": 5, "per": ["topic"]}, "settings")
    '{"delay":5,"per":["topic"]}'
    >>> to_json(float("nan"), "settings")
    Traceback (most recent call last):
    floodmark.errors.NotJson: The settings cannot be written as JSON: ... [not-json]
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        # A lone surrogate passes json.dumps, but cannot be stored.
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(
            f"The {what} cannot be written as JSON: {error}.",
            rule="Stored values consist of None, bools, finite numbers, strings, and lists and dicts of these.",
            remedy="Convert it first, for example a datetime to microseconds since the epoch.",
            what=what,
        ) from error
    return text


MAX_DEPTH: Final = 200
"""How deep lists and objects of JSON from outside may be nested, independent of the caller's stack size."""

_BRACKET: Final = re.compile(r'"(?:[^"\\]|\\.)*"|([\[{])|([\]}])')


def parse_json(text: str | bytes, parse_float: Callable[[str], Any] | None = None) -> JsonValue:
    """Return the value of JSON from outside: a file, a record, a server. Raise ValueError for any other text.

    Nesting above `MAX_DEPTH` is refused too, because functions that walk through the value call themselves.

    >>> parse_json('{"delay": [5]}')
    {'delay': [5]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ValueError: lists and objects are nested in more than 200 levels
    """
    if not isinstance(text, str):
        text = text.decode(json.detect_encoding(text))
    try:
        value = json.loads(text, parse_float=parse_float)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if text.count("{") + text.count("[") > MAX_DEPTH and json_depth(text) > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP: Final = f"lists and objects are nested in more than {MAX_DEPTH} levels"


def json_depth(text: str) -> int:
    """Return how deep lists and objects are nested in valid JSON.

    >>> json_depth('[{"a": "[["}, []]')
    2
    """
    deepest = depth = 0
    for match in _BRACKET.finditer(text):
        depth += 1 if match[1] else -1 if match[2] else 0
        deepest = max(deepest, depth)
    return deepest


def from_json(text: str) -> JsonValue:
    """Return the value of JSON text that Floodmark has stored.

    >>> from_json('{"delay":5}')
    {'delay': 5}
    """
    return json.loads(text)
