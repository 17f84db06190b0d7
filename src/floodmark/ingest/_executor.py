"""Who extracts and lands what a plan says. Ingestion itself only knows the promise that it keeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from floodmark.ingest._row import Row
from floodmark.ingest._run import Run


@dataclass(frozen=True, slots=True)
class Landed:
    """What became of a row of a plan that was extracted and landed.

    >>> Landed(rows=12).lateness is None
    True
    """

    rows: int | None = None
    lateness: Mapping[int, int] | None = None
    """How many rows were first found so many calendar days after their own."""


class Executor(Protocol):
    """Extracts and lands. It may be called from several threads at once, with different rows of one run."""

    def prepare(self, run: Run) -> None:
        """Look, before anything is extracted, whether an earlier run has landed what it could not record any more.

        Such ranges are given to `run.adopt`.
        """

    def land(self, run: Run, row: Row) -> Landed:
        """Extract `row.range` of `row.unit`, whole, and land it so that doing it again changes nothing.

        What is landed carries `run.token`: what an overtaken run does later must not count. Whatever is raised fails
        this row alone, and it stays due.
        """
        ...

    def finish(self, run: Run) -> None:
        """Do what comes after all rows: each is recorded, and the run has not ended. Also if some have failed.

        What is raised here fails the run, and none of its rows.
        """

    def close(self) -> None:
        """Let go of what it holds."""
