"""Records on their way to the driver, which must not keep them."""

import os
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from floodmark.spark.sink.kafka import unpack_rows
from floodmark.spark.transfer import bring_to_driver, pack_rows

SIZE = 5_000_000


def cells(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([os.urandom(SIZE)], pa.binary())], ["records"])


def bring(spark: SparkSession) -> int:
    frame = spark.range(2, numPartitions=2).mapInArrow(cells, "records BINARY")
    return sum(len(cell) for (cell,) in bring_to_driver(frame))


def used(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.System.gc()
    runtime = jvm.java.lang.Runtime.getRuntime()
    return int(runtime.totalMemory() - runtime.freeMemory())


@pytest.mark.long
@pytest.mark.parametrize("execution", [None, "1000000"])
def test_nothing_of_what_was_brought_stays_in_the_jvm(spark: SparkSession, execution: str | None) -> None:
    context = spark.sparkContext
    context.setLocalProperty("spark.sql.execution.id", execution)  # type: ignore[arg-type]
    try:
        bring(spark)
        before = used(spark)
        assert sum(bring(spark) for _ in range(10)) == 20 * SIZE
        assert used(spark) - before < 10 * SIZE
        assert context.getLocalProperty("spark.sql.execution.id") == execution
    finally:
        context.setLocalProperty("spark.sql.execution.id", None)  # type: ignore[arg-type]


def test_records_come_as_they_are_and_in_their_order(spark: SparkSession) -> None:
    rows = spark.range(50_000, numPartitions=3).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS key", "unhex(hex(id * 7919)) AS value", "id AS ts"
    )
    found = [row for piece in unpack_rows(bring_to_driver(pack_rows(rows))) for row in piece.rows()]
    assert [int(row[0] or b"") for row in found] == list(range(50_000))
    assert [int.from_bytes(row[1] or b"", "big") for row in found] == [number * 7919 for number in range(50_000)]
    assert [row[2] for row in found] == list(range(50_000))
