"""A directory of Parquet files as a target: manifests, one small file each, say which of the others count.

    orders/
        _floodmark/table.json                       what the directory is, and the columns of its rows
        _floodmark/closings/out/00000000000000000002.json   the second manifest of the sink "out"
        9c0e6d1f3a27-5b1c...e2/part-00000-....parquet       rows of an attempt of the sink, with timestamps

A manifest is created by a hard link, which fails if the name exists: of two with the same number only one is
there. It names the files of the one attempt that counts, each with its number of rows. What an attempt has left
that no manifest names is removed by the next start of the sink; until then readers ignore it.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pyarrow.parquet as pq

from floodmark._util.disk import sync_to_disk
from floodmark.errors import TableFailed, TableUnfit
from floodmark.sinks.manifest.target import Manifest, ManifestPart, effective_manifests

_METADATA_DIRECTORY: Final = "_floodmark"
_FORMAT_VERSION: Final = 1


class FileManifestLog:
    """The records of a sink in a directory."""

    noun = "directory"

    def __init__(self, path: Path, sink: str, schema: str) -> None:
        """Write rows of this schema, JSON, to this directory."""
        self.sink = sink
        self._path = path
        self._schema = schema
        self._own = hashlib.sha256(sink.encode()).hexdigest()[:12]
        self._left: list[Path] = []

    @property
    def place(self) -> str:
        """The directory."""
        return str(self._path)

    @property
    def address(self) -> str:
        """What names the directory."""
        return f"file://{self._path}"

    def open(self) -> str | None:
        """Return the id of the directory, or None if it is not one of ours; refuse other columns than it has."""
        told = read_directory_info(self._path)
        if told is None:
            return None
        if json.loads(told["schema"]) != json.loads(self._schema):
            raise TableUnfit(
                f"The rows do not have the columns of those in {self._path}.",
                rule="All rows of a directory have the same columns, with their types and in their order.",
                remedy="Select and cast columns, or name another directory.",
                table=str(self._path),
                columns=told["schema"],
                rows=self._schema,
            )
        self._left = [path for path in self._path.glob(f"{self._own}-*") if path.is_dir()]
        return str(told["id"])

    def make(self) -> None:
        """Make the directory what it is to be; one that has files of others stays as it is."""
        if self._path.is_dir() and any(self._path.glob("*.parquet")):
            raise TableUnfit(
                f"The directory {self._path} has Parquet files that no sink has written.",
                rule="Which files count is known of those that were written by sinks.",
                remedy="Name another directory.",
                table=str(self._path),
            )
        about_it = {"form": _FORMAT_VERSION, "id": uuid.uuid4().hex, "schema": self._schema}
        _create_file(self._path / _METADATA_DIRECTORY / "table.json", json.dumps(about_it).encode())

    def newest(self) -> Manifest | None:
        """Return the last record of the sink."""
        paths = sorted(self._records.glob("*.json"))
        return Manifest.load(paths[-1].read_bytes()) if paths else None

    def has_rows(self) -> bool:
        """Return whether any sink has closed rows here."""
        return any(record.parts for record in read_manifests(self._path))

    def begin(self, attempt: str) -> Path:
        """Return the directory in which the files of an attempt are to be written."""
        return self._path / f"{self._own}-{attempt}"

    def made(self, attempt: str) -> list[ManifestPart]:
        """Return the files that an attempt has made, which are then on disk."""
        parts = []
        for path in sorted(self.begin(attempt).iterdir()):
            rows = pq.read_metadata(path).num_rows if path.suffix == ".parquet" else 0
            if rows:
                sync_to_disk(path)
                parts.append(ManifestPart(path.relative_to(self._path).as_posix(), rows))
            else:
                path.unlink()
        sync_to_disk(self.begin(attempt))
        return parts

    def add(self, record: Manifest) -> bool:
        """Make a record behind the one before it, unless there is one of its number."""
        if record.number > 1 and not self._record(record.number - 1).exists():
            # An older copy was put in the place of the directory.
            return False
        return _create_file(self._record(record.number), record.save())

    def clean(self, record: Manifest) -> None:
        """Remove the directories of attempts that were there before the record, and that none names."""
        if self._left:
            named = {
                part.name.partition("/")[0] for one in read_manifests(self._path, [self.sink]) for part in one.parts
            }
            for path in self._left:
                if path.name not in named:
                    shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Let go."""

    def _record(self, number: int) -> Path:
        return self._records / f"{number:020}.json"

    @property
    def _records(self) -> Path:
        return self._path / _METADATA_DIRECTORY / "closings" / quote(self.sink, safe=" ")


def read_directory_info(path: Path) -> dict[str, Any] | None:
    """Return what a directory says of itself: its id and schema; None if it is not one of ours."""
    try:
        told: dict[str, Any] = json.loads((path / _METADATA_DIRECTORY / "table.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if told.get("form") != _FORMAT_VERSION:
        raise TableUnfit(
            f"The directory {path} has the form {told.get('form')}.",
            rule=f"This release knows the form {_FORMAT_VERSION}.",
            remedy="Use the release that has written it.",
            table=str(path),
        )
    return told


def read_manifests(path: Path, sinks: Iterable[str] | None = None) -> list[Manifest]:
    """Return the records of a directory that count, of all sinks or of some."""
    wanted = None if sinks is None else set(sinks)
    found = (
        Manifest.load(file.read_bytes()) for file in sorted((path / _METADATA_DIRECTORY / "closings").glob("*/*.json"))
    )
    chains = effective_manifests(record for record in found if wanted is None or record.sink in wanted)
    return [record for chain in chains.values() for record in chain]


def _create_file(path: Path, value: bytes) -> bool:
    """Make a file with a whole value, unless there is one already; return whether it was made."""
    new = path.with_name(f".{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(value)
        sync_to_disk(new)
        try:
            # Unlike to rename, this never takes the place of another file.
            os.link(new, path)
        except FileExistsError:
            return False
        finally:
            new.unlink()
        sync_to_disk(path.parent)
    except OSError as error:
        raise TableFailed(
            f"The file {path} could not be made: {error}.",
            rule="A sink keeps its records beside the rows, in a file system that knows links.",
            remedy="Name a directory in which it may write.",
            table=str(path),
        ) from error
    return True
