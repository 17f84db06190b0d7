"""A stream of changes, each of a key, and queries that put them into a table by key."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame, SparkSession

import floodmark as fm
from floodmark.spark.sink import query as _write_stream
from floodmark.spark.sink.address import SinkOptions, sink_spec
from floodmark.spark.sink.rows import RowFormat
from support.spark.stream_feed import BASE, SECOND, StreamFeed
from support.spark.table_shop import table

COLUMNS = ("k STRING", "p STRING", "v BIGINT", "_diff INT")


class Changes(StreamFeed):
    """Changes that are written as texts, "key partition value diff"; _ stands for nothing."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        # Of one segment rows are read in the order in which they were written.
        super().__init__(spark, path, segments=1)
        self.place = path / "out"
        self._now = 0

    def put(self, *timestamps: Iterable[str]) -> None:
        """Write changes, those of each timestamp together."""
        for changes in timestamps:
            self._now += 1
            at = datetime.fromtimestamp(BASE // SECOND + self._now, UTC)
            self._writer.write_batch([{"id": next(self._ids), "t": at, "item": change} for change in changes])
            self.play([self._now, None])

    def frame(self, spark: SparkSession | None = None, **options: Any) -> DataFrame:
        """Return the changes in columns."""
        read = fm.read_stream(spark or self.spark, "orders", home=self.path / "home", **options)
        parts = [f"CAST(nullif(split(item, ' ')[{n}], '_') AS {one.split()[1]})" for n, one in enumerate(COLUMNS)]
        named = [f"{part} AS {one.split()[0]}" for part, one in zip(parts, COLUMNS, strict=True)]
        return read.selectExpr(*named, "_ts")

    def run(self, frame: DataFrame | None = None, checkpoint: str = "checkpoint", **options: Any) -> Any:
        """Put all changes that there are into the table, and return the query, which has ended."""
        told = {"mode": "upsert", "key": "k", "name": "out", "trigger": {"availableNow": True}, **options}
        query = fm.write_stream(
            self.frame() if frame is None else frame,
            to=f"delta://{self.place}",
            checkpoint=self.path / checkpoint,
            home=self.path / "home",
            **told,
        )
        query.awaitTermination()
        return query

    def open_again(self) -> Any:
        """Return another writer for the sink, which takes over when it is started."""
        schema = self.frame().schema
        form = RowFormat.of(schema, "upsert", "k", {})
        return sink_spec(f"delta://{self.place}", "out", form, SinkOptions(), schema).open(self.home.home)

    def make_table(self, partition_by: Iterable[str] = ()) -> None:
        """Make the table before a query does."""
        kinds = {"k": "string", "p": "string", "v": "long"}
        fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
        schema = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
        DeltaTable.create(str(self.place), schema, partition_by=list(partition_by))

    def rows(self) -> list[tuple[Any, ...]]:
        """Return what is in the table."""
        return sorted(tuple(row.values()) for row in table(self.place, "SELECT k, p, v FROM t"))

    def files(self) -> set[str]:
        """Return the files of rows that are in the table's directory, also those that no version has any more."""
        found = {path.relative_to(self.place).as_posix() for path in self.place.rglob("*.parquet")}
        return {path for path in found if not path.startswith("_delta_log/")}


def at_failpoint(monkeypatch: pytest.MonkeyPatch, act: Callable[[str], None]) -> None:
    """Let something be done whenever a sink that is started from now on comes to a place."""
    spec_of: Any = vars(_write_stream)["sink_spec"]
    monkeypatch.setattr(_write_stream, "sink_spec", lambda *given: dataclasses.replace(spec_of(*given), failpoint=act))
