"""Small tables of Delta Lake, for tests."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from floodmark.delta import DeltaCommits


def schema(**columns: Any) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


ROWS = schema(n="long")


def open_table(path: Path, app: str = "app", columns: str = ROWS) -> DeltaCommits:
    return DeltaCommits.open(path, app, columns)


def stage(table: DeltaCommits, attempt: str, *numbers: int) -> Any:
    directory = table.staging.begin(attempt)
    directory.mkdir()
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), directory / "part-0.parquet")
    return table.staging.staged_files(attempt)


def rows(path: Path, query: str = "SELECT n FROM t ORDER BY n") -> list[Any]:
    found = QueryBuilder().register("t", DeltaTable(str(path))).execute(query).read_all()
    return [tuple(row.values()) for row in pa.table(found).to_pylist()]
