"""A directory of Parquet files as a target: manifests, one small file each, name the files that count.

    orders/
        _floodmark/table.json                       id of the directory and the schema of its rows
        _floodmark/closings/out/00000000000000000002.json   the second manifest of the sink "out"
        9c0e6d1f3a27-5b1c...e2/part-00000-....parquet       rows of an attempt of the sink, with timestamps

A manifest is created by a hard link, which fails if the name exists, so only one manifest of a number exists. It names
the files of the one attempt that counts, each with its number of rows. The next start of the sink removes files that no
manifest names; until then readers ignore them.
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
    """The manifests of a sink, kept in a directory."""

    noun = "directory"

    def __init__(self, path: Path, sink: str, schema: str) -> None:
        """Write rows of this JSON schema to the directory `path`."""
        self.sink = sink
        self._path = path
        self._schema = schema
        self._prefix = hashlib.sha256(sink.encode()).hexdigest()[:12]
        self._leftovers: list[Path] = []

    @property
    def location(self) -> str:
        """The directory."""
        return str(self._path)

    @property
    def address(self) -> str:
        """URL of the directory."""
        return f"file://{self._path}"

    def open(self) -> str | None:
        """Return the id of the directory, or None if it has none yet; raise an error if the schemas differ."""
        info = read_directory_info(self._path)
        if info is None:
            return None
        if json.loads(info["schema"]) != json.loads(self._schema):
            raise TableUnfit(
                f"The rows do not have the columns of the rows in {self._path}.",
                rule="All rows of a directory have the same columns and types, in the same order.",
                remedy="Select and cast the columns, or write to another directory.",
                table=str(self._path),
                columns=info["schema"],
                rows=self._schema,
            )
        self._leftovers = [path for path in self._path.glob(f"{self._prefix}-*") if path.is_dir()]
        return str(info["id"])

    def create(self) -> None:
        """Create the directory; raise an error if it has Parquet files of other programs."""
        if self._path.is_dir() and any(self._path.glob("*.parquet")):
            raise TableUnfit(
                f"The directory {self._path} has Parquet files that no sink wrote.",
                rule="Readers count only files that a manifest of a sink names.",
                remedy="Write to a new or empty directory.",
                table=str(self._path),
            )
        info = {"form": _FORMAT_VERSION, "id": uuid.uuid4().hex, "schema": self._schema}
        _create_file(self._path / _METADATA_DIRECTORY / "table.json", json.dumps(info).encode())

    def newest(self) -> Manifest | None:
        """Return the last manifest of the sink."""
        paths = sorted(self._manifests.glob("*.json"))
        return Manifest.load(paths[-1].read_bytes()) if paths else None

    def has_rows(self) -> bool:
        """Return whether any sink has closed rows in this directory."""
        return any(record.parts for record in read_manifests(self._path))

    def attempt_directory(self, attempt: str) -> Path:
        """Return the directory for the files of an attempt."""
        return self._path / f"{self._prefix}-{attempt}"

    def attempt_parts(self, attempt: str) -> list[ManifestPart]:
        """Sync the files of an attempt to disk, and return them; files without rows are deleted."""
        parts = []
        for path in sorted(self.attempt_directory(attempt).iterdir()):
            rows = pq.read_metadata(path).num_rows if path.suffix == ".parquet" else 0
            if rows:
                sync_to_disk(path)
                parts.append(ManifestPart(path.relative_to(self._path).as_posix(), rows))
            else:
                path.unlink()
        sync_to_disk(self.attempt_directory(attempt))
        return parts

    def add(self, record: Manifest) -> bool:
        """Create the manifest, unless its number exists or the one before it is missing."""
        if record.number > 1 and not self._manifest_path(record.number - 1).exists():
            # The directory was replaced by an older copy.
            return False
        return _create_file(self._manifest_path(record.number), record.save())

    def clean(self, record: Manifest) -> None:
        """Remove the attempt directories that `open` found and no manifest names."""
        if self._leftovers:
            named = {
                part.name.partition("/")[0]
                for manifest in read_manifests(self._path, [self.sink])
                for part in manifest.parts
            }
            for path in self._leftovers:
                if path.name not in named:
                    shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Do nothing: no resources are kept."""

    def _manifest_path(self, number: int) -> Path:
        return self._manifests / f"{number:020}.json"

    @property
    def _manifests(self) -> Path:
        return self._path / _METADATA_DIRECTORY / "closings" / quote(self.sink, safe=" ")


def read_directory_info(path: Path) -> dict[str, Any] | None:
    """Return id and schema of a directory; None if it is no target of a sink."""
    try:
        info: dict[str, Any] = json.loads((path / _METADATA_DIRECTORY / "table.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    if info.get("form") != _FORMAT_VERSION:
        raise TableUnfit(
            f"The directory {path} has format version {info.get('form')}.",
            rule=f"This release reads format version {_FORMAT_VERSION}.",
            remedy="Use the Floodmark release that wrote the directory, or a newer one.",
            table=str(path),
        )
    return info


def read_manifests(path: Path, sinks: Iterable[str] | None = None) -> list[Manifest]:
    """Return the manifests of a directory that count, of all sinks or of some."""
    names = None if sinks is None else set(sinks)
    manifests = (
        Manifest.load(file.read_bytes()) for file in sorted((path / _METADATA_DIRECTORY / "closings").glob("*/*.json"))
    )
    chains = effective_manifests(record for record in manifests if names is None or record.sink in names)
    return [record for chain in chains.values() for record in chain]


def _create_file(path: Path, value: bytes) -> bool:
    """Atomically create a file with this content; return False if it exists already."""
    new = path.with_name(f".{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(value)
        sync_to_disk(new)
        try:
            # Unlike a rename, a link never replaces an existing file.
            os.link(new, path)
        except FileExistsError:
            return False
        finally:
            new.unlink()
        sync_to_disk(path.parent)
    except OSError as error:
        raise TableFailed(
            f"The file {path} could not be created: {error}.",
            rule="A sink needs a writable file system with hard links for its manifests.",
            remedy="Check permissions and free space, or write to a directory on a local file system.",
            table=str(path),
        ) from error
    return True
