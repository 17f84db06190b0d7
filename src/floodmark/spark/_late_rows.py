"""The late rows of a query that were kept apart."""

import json
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType, TimestampType

from floodmark.control import Home, Queries, WatermarkSteps
from floodmark.errors import NoLateRows
from floodmark.spark._columns import column_of
from floodmark.spark._late import WATERMARK, place_of
from floodmark.spark._listener import home_of

LATENESS: Final = "_lateness"


def late(query: StreamingQuery | str, *, column: str | None = None, home: str | Path | None = None) -> DataFrame:
    """Return the late rows of a query over `with_watermark(..., late="route")`, as far as it has run.

    Besides its own columns a row has `_watermark`, under which its batch ran, and `_lateness`, how far behind it the
    row was. A batch that ran again after a crash counts once.

    ```python
    query = orders.writeStream.queryName("orders").start()
    fm.late(query).groupBy("partition").agg(F.count("*"), F.max("_lateness")).show()
    ```

    A query can also be named, or be given by its id or the beginning of it, as `floodmark why` takes it. `column` is
    needed where a query has several watermarks. The `home` of a query that this program started is known.
    """
    spark = SparkSession.active()
    asked = query if isinstance(query, str) else str(query.id)
    known = home_of(spark, asked) if home is None else None
    with Home.open_existing(known or home) as kept:
        record = Queries(kept).find(asked)
        steps = WatermarkSteps(kept)
        settings = {one: steps.incarnation(incarnation).settings for incarnation, _, one in record.incarnations}
        routed = {one: found["schema"] for one, found in settings.items() if found.get("schema")}
        wanted = [one for one in routed if column in (None, one)]
        if len(wanted) != 1:
            raise NoLateRows(
                f"The query {asked!r} keeps late rows apart on {', '.join(map(repr, routed)) or 'no column'}.",
                rule="Late rows are kept where with_watermark was told late='route'.",
                remedy="Name one of these columns." if routed else "Start the query with late='route'.",
                query=asked,
                columns=list(routed),
            )
        files = _files(place_of(kept.path, record.query_id, wanted[0]))
    schema = StructType.fromJson(json.loads(routed[wanted[0]])).add(WATERMARK, TimestampType())
    rows = spark.read.schema(schema).parquet(*map(str, files)) if files else spark.createDataFrame([], schema)
    return rows.withColumn(LATENESS, F.col(WATERMARK) - column_of(wanted[0]))


def _files(place: Path) -> list[Path]:
    """Return the files of all batches, of each the last run that ran it: when it runs again it finds the same rows."""
    files: list[Path] = []
    for batch in _directories(place):
        runs = _directories(batch)
        if runs:
            files += sorted(max(runs, key=lambda run: run.stat().st_mtime_ns).glob("*.parquet"))
    return files


def _directories(path: Path) -> list[Path]:
    return sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
