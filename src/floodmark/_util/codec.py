"""Values that are stored and read back: snapshots with a kind and a version, and JSON text."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from floodmark.errors import NotJson, SnapshotInvalid, SnapshotVersionUnknown

Snapshot = dict[str, Any]
"""What `snapshot()` returns: JSON values only, so that it can be kept anywhere."""

SNAPSHOT_VERSION = 1


def new_snapshot(kind: str, **state: Any) -> Snapshot:
    """Return the state under its kind and the current version.

    >>> new_snapshot("tracker", origins=[])
    {'kind': 'tracker', 'version': 1, 'origins': []}
    """
    return {"kind": kind, "version": SNAPSHOT_VERSION, **state}


@contextmanager
def open_snapshot(snapshot: object, kind: str) -> Iterator[Mapping[str, Any]]:
    """Check kind and version; inside, whatever goes wrong for want of a field means an invalid snapshot.

    >>> with open_snapshot({"kind": "tracker", "version": 99}, "tracker") as state:
    ...     pass
    Traceback (most recent call last):
    floodmark.errors.SnapshotVersionUnknown: The snapshot has version 99. ... [snapshot-version-unknown]
    """
    if not isinstance(snapshot, Mapping) or snapshot.get("kind") != kind:
        found = snapshot.get("kind") if isinstance(snapshot, Mapping) else type(snapshot).__name__
        raise _snapshot_invalid(kind, f"it is of kind {found!r}")
    if snapshot.get("version") != SNAPSHOT_VERSION:
        raise SnapshotVersionUnknown(
            f"The snapshot has version {snapshot.get('version')!r}.",
            rule=f"This release reads version {SNAPSHOT_VERSION} of a {kind} snapshot.",
            remedy="Restore it with the release that wrote it.",
            found=snapshot.get("version"),
            expected=SNAPSHOT_VERSION,
        )
    try:
        yield snapshot
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise _snapshot_invalid(kind, f"reading it failed with {error!r}") from error
    except ValueError as error:
        if isinstance(error, SnapshotInvalid):
            raise
        raise _snapshot_invalid(kind, f"a value is wrong: {error}") from error


def _snapshot_invalid(kind: str, why: str) -> SnapshotInvalid:
    return SnapshotInvalid(
        f"This is not a snapshot of a {kind}: {why}.",
        rule="A snapshot is restored exactly as it was written.",
        remedy="Pass what snapshot() returned.",
        kind=kind,
    )


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
