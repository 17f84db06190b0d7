"""Queries of a shop into tables, directories and topics without transactions, and what is in them."""

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import floodmark as fm
from support.spark.sink_shop import START, frame, result

TARGETS = ("delta", "file", "topic")
KINDS = ("rows", "windows")


def address(target: str, kind: str, directory: Path, servers: str | None = None) -> str:
    """Return where a query writes."""
    if target == "topic":
        return f"kafka://{servers}/{directory.name}-{kind}"
    return f"{target}://{directory}/{target}-{kind}"


def start(
    spark: SparkSession,
    target: str,
    kind: str,
    directory: Path,
    *,
    servers: str | None = None,
    checkpoints: str = "checkpoints",
    max_rows: int | None = None,
    df: DataFrame | None = None,
    **options: Any,
) -> Any:
    """Start a query that reads all there is."""
    home = directory / "home"
    if target == "topic":
        options |= {"staged": True, "partitions": 2}
    return fm.write_stream(
        frame(spark, kind, home, max_rows) if df is None else df,
        to=address(target, kind, directory, servers),
        name=f"{target}-{kind}",
        checkpoint=directory / checkpoints / f"{target}-{kind}",
        home=home,
        trigger={"availableNow": True},
        **options,
    )


def table(path: Path, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
    """Return what a table of Delta Lake has, as others read it."""
    found = QueryBuilder().register("t", DeltaTable(str(path))).execute(query).read_all()
    rows: list[dict[str, Any]] = pa.table(found).to_pylist()
    return rows


def found(spark: SparkSession, target: str, kind: str, directory: Path, servers: str | None = None) -> Counter[Any]:
    """Return what counts of what a query has written."""
    where = address(target, kind, directory, servers)
    if target == "delta":
        path = Path(where.removeprefix("delta://"))
        rows = table(path) if path.exists() else []
        if kind == "rows":
            return Counter(row["id"] for row in rows)
        return Counter(((row["window"]["start"] - START) // timedelta(seconds=1), row["count"]) for row in rows)
    closed = fm.read_closed(spark, where)
    if target == "topic":
        return Counter(result(kind, row["value"]) for row in closed.collect())
    if kind == "rows":
        return Counter(row["id"] for row in closed.collect())
    from_start = F.unix_seconds("window.start") - F.lit(int(START.timestamp()))
    return Counter(
        (row["start"], row["n"])
        for row in closed.select(from_start.alias("start"), F.col("count").alias("n")).collect()
    )
