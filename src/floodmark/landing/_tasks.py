"""What landing asks of whoever has many hands: to read and write where the rows are. Spark's tasks do it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from floodmark.delta import StagedFile
from floodmark.ingest import Row
from floodmark.ingest._target_spec import Drift
from floodmark.landing._live import LiveFile
from floodmark.landing._scope import Scope


@dataclass(frozen=True, slots=True)
class Destination:
    """Where rows are written, and what must hold of them. It is sent to tasks."""

    table: Path
    directory: Path
    """Inside the table's directory; it may not be there yet."""
    schema: pa.Schema | None
    """Of the table; None if it is to be made of these rows."""
    drift: Drift
    constants: Mapping[str, object]
    """Columns of the unit, for rows that do not have them."""
    keys: tuple[str, ...] = ()
    """Columns in which each row has a value."""
    scope: Scope | None = None
    """Rows outside of it are refused."""
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Staged:
    """What was written, and is in no table yet."""

    files: tuple[StagedFile, ...] = ()
    schema: pa.Schema | None = None
    """The columns of the files; None if it is not known, and there are no rows."""

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class Merge:
    """What is to be merged: rows that were just read, and files of the table that may have the same keys."""

    new: Sequence[LiveFile]
    live: Sequence[LiveFile]
    keys: tuple[str, ...]
    newest_by: str


@dataclass(frozen=True, slots=True)
class Merged:
    """What becomes of a table by merging."""

    staged: Staged
    gone: tuple[str, ...]
    """Live files that give way: what stays of them was written anew."""


class Tasks(Protocol):
    """Reads and writes rows. Each call ends when all is written, or raises and what was written is in vain."""

    def extract(self, row: Row, to: Destination) -> Staged:
        """Read what a row of a plan is about from its source, and write it."""
        ...

    def keep(self, files: Sequence[LiveFile], scope: Scope, to: Destination) -> Staged:
        """Write the rows of files anew that are not in a scope."""
        ...

    def merge(self, merge: Merge, to: Destination) -> Merged:
        """Write rows so that of each key only the newest is there, in them and in the live files."""
        ...
