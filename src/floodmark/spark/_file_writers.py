"""Batches of a query as Parquet files: those of a table of Delta Lake, or of a directory."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from pyspark.sql import DataFrame

from floodmark.bindings import Bindings
from floodmark.control import Home
from floodmark.sinks import Batch, BatchOutcome, Sink, Sinks, Write, WriteFrom
from floodmark.sinks.manifest.target import AttemptWriter, ManifestLog, ManifestOptions, ManifestPart, ManifestTarget
from floodmark.sinks.target import Failpoint, no_failpoint
from floodmark.spark._batch_sink import WriterOver
from floodmark.spark._sink_batches import known_times, newest_ts, rows_after
from floodmark.spark._table_rows import TableForm, write_parquet


@dataclass(frozen=True, slots=True)
class FilesSpec:
    """Which table or directory is written, and how."""

    kind: Literal["delta", "file"]
    path: Path
    sink: str
    options: ManifestOptions
    form: TableForm
    failpoint: Failpoint = no_failpoint

    def open(self, home: Home) -> "FileWriter":
        """Return the writer."""
        return FileWriter(home, self)


class FileLogs(ManifestLog, Protocol):
    """A log that closes files."""

    def begin(self, attempt: str) -> Path:
        """Return the directory in which the files of an attempt are to be written."""

    def made(self, attempt: str) -> list[ManifestPart]:
        """Return the files that an attempt has made."""


class FileWriter(WriterOver[Sink[AttemptWriter]]):
    """Lets Spark write the files of a batch, and closes them."""

    def __init__(self, home: Home, spec: FilesSpec) -> None:
        """Write as the spec says; nothing is looked at before `start`."""
        self._spec = spec
        self._bindings = Bindings(home)
        self._log = _log_of(spec)
        target = ManifestTarget(
            self._log,
            spec.options,
            mode="atomic" if spec.kind == "delta" else "staged",
            known=lambda: Sinks(home).get(spec.sink).progress,
            failpoint=spec.failpoint,
        )
        super().__init__(Sink(home, target, failpoint=spec.failpoint))

    def write(self, df: DataFrame, batch: Batch, watermarks: Mapping[str, int]) -> BatchOutcome:
        """Write a batch unless it was written."""
        with ExitStack() as kept:
            run = partial(self._replace, kept) if self._spec.form.form.mode == "upsert" else self._append
            return self._sink.write(batch, partial(run, df, batch), watermarks=watermarks)

    def _append(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom) -> AttemptWriter:
        return partial(self._run, df, batch, decision)

    def _replace(self, kept: ExitStack, df: DataFrame, batch: Batch, decision: Write | WriteFrom) -> AttemptWriter:
        from floodmark.sinks.manifest.delta import DeltaManifestLog
        from floodmark.spark._table_upserts import Upsert

        form, log = self._spec.form, self._log
        assert isinstance(log, DeltaManifestLog)
        newest = form.newest(
            df,
            newest_ts(batch),
            after=rows_after(decision, batch, form.form, self._bindings),
            told=known_times(form.form, batch, self.progress),
            partition_by=log.table.partition_by,
        )
        upsert = Upsert(newest, form.form.key, log)
        kept.callback(upsert.over)
        return upsert.run

    def _run(self, df: DataFrame, batch: Batch, decision: Write | WriteFrom, attempt: str) -> list[ManifestPart]:
        form, log = self._spec.form, self._log
        after = rows_after(decision, batch, form.form, self._bindings)
        told = known_times(form.form, batch, self.progress)
        rows = form.rows(df, newest_ts(batch), after=after, told=told)
        write_parquet(rows, str(log.begin(attempt)), _partition_by(log))
        return log.made(attempt)


def _log_of(spec: FilesSpec) -> FileLogs:
    if spec.kind == "file":
        from floodmark.sinks.manifest.files import FileManifestLog

        return FileManifestLog(spec.path, spec.sink, spec.form.schema)
    # Whoever writes elsewhere needs no client for Delta Lake.
    from floodmark.sinks.manifest.delta import DeltaManifestLog

    return DeltaManifestLog(spec.path, spec.sink, spec.form.schema, replaces=spec.form.form.mode == "upsert")


def _partition_by(log: FileLogs) -> tuple[str, ...]:
    table = getattr(log, "table", None)
    return () if table is None else tuple(table.partition_by)
