"""Snapshots: plain JSON values with a kind and a version, read back only by the version that knows them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from floodmark.errors import SnapshotInvalid, SnapshotVersionUnknown

Snapshot = dict[str, Any]
"""What `snapshot()` returns: JSON values only, so that it can be kept anywhere."""

VERSION = 1


def new_snapshot(kind: str, **state: Any) -> Snapshot:
    """Return the state under its kind and the current version.

    >>> new_snapshot("tracker", origins=[])
    {'kind': 'tracker', 'version': 1, 'origins': []}
    """
    return {"kind": kind, "version": VERSION, **state}


@contextmanager
def reading(snapshot: object, kind: str) -> Iterator[Mapping[str, Any]]:
    """Check kind and version; inside, whatever goes wrong for want of a field means an invalid snapshot.

    >>> with reading({"kind": "tracker", "version": 99}, "tracker") as state:
    ...     pass
    Traceback (most recent call last):
    floodmark.errors.SnapshotVersionUnknown: The snapshot has version 99. ... [snapshot-version-unknown]
    """
    if not isinstance(snapshot, Mapping) or snapshot.get("kind") != kind:
        found = snapshot.get("kind") if isinstance(snapshot, Mapping) else type(snapshot).__name__
        raise _invalid(kind, f"it is of kind {found!r}")
    if snapshot.get("version") != VERSION:
        raise SnapshotVersionUnknown(
            f"The snapshot has version {snapshot.get('version')!r}.",
            rule=f"This release reads version {VERSION} of a {kind} snapshot.",
            remedy="Restore it with the release that wrote it.",
            found=snapshot.get("version"),
            expected=VERSION,
        )
    try:
        yield snapshot
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise _invalid(kind, f"reading it failed with {error!r}") from error
    except ValueError as error:
        if isinstance(error, SnapshotInvalid):
            raise
        raise _invalid(kind, f"a value is wrong: {error}") from error


def _invalid(kind: str, why: str) -> SnapshotInvalid:
    return SnapshotInvalid(
        f"This is not a snapshot of a {kind}: {why}.",
        rule="A snapshot is restored exactly as it was written.",
        remedy="Pass what snapshot() returned.",
        kind=kind,
    )
