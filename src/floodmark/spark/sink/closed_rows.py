"""What sinks without transactions have written, read so that each row is there once."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from floodmark.errors import InvalidOption, TableUnfit, UnknownTopic
from floodmark.sinks.kafka.rows import TS_HEADER
from floodmark.sinks.manifest.files import read_directory_info, read_manifests
from floodmark.spark.sink.rows import TS_COLUMN

if TYPE_CHECKING:
    from floodmark.kafka import KafkaSettings

_ROWS_A_TASK: Final = 200_000
_RANGE_SCHEMA: Final = "number INT, part INT, first BIGINT, behind BIGINT"
_RECORD_FIELDS: Final = (
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("_ts", pa.timestamp("us", "UTC")),
    ("task", pa.string()),
    ("number", pa.int64()),
)
_RECORD_SCHEMA: Final = "key BINARY, value BINARY, _ts TIMESTAMP, task STRING, number BIGINT"


def read_closed(
    spark: SparkSession,
    source: str | Path,
    *,
    sink: str | None = None,
    with_ts: bool = False,
    progress_topic: str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return what sinks have written to a directory of files, or to a topic without transactions: each row once.

    `source` is a path, file:///path or kafka://host:port/topic. Rows that are not closed yet are left out, and so is
    what was left by an attempt that was killed, or tried again, or is of a process that another has taken the place of.
    `sink` chooses the rows of one sink. `with_ts` adds the timestamp of each row as `_ts`. Of a topic, rows have the
    columns key and value. It is what is closed now: call it again for more.

    ```python
    import floodmark as fm

    query = fm.write_stream(orders, to="file:///data/orders", name="orders", checkpoint="checkpoints/orders")
    fm.read_closed(fm.session(), "/data/orders").count()
    ```

    Whoever cannot call this reads the records by which it knows, which are JSON: in a directory the files
    `_floodmark/closings/<sink>/<number>.json`, and for a topic the records of `<topic>.progress` whose key begins with
    `floodmark.closing/`. Of each sink they count in the order of their numbers, from 1 on, and the first of a number
    counts. Their `parts` name what is closed: files, or values of the header `floodmark.task`. A row of a topic that
    came twice has the same `floodmark.task` and `floodmark.index`.
    """
    text = str(source)
    scheme, found, rest = text.partition("://")
    if not found or (scheme == "file" and rest.startswith("/")):
        rows = _directory_rows(spark, Path(rest if found else text).absolute(), sink)
    elif scheme == "kafka" and rest.count("/") == 1 and not rest.endswith("/"):
        # Whoever reads files needs no client for Kafka.
        from floodmark.kafka import KafkaSettings

        servers, _, topic = rest.partition("/")
        rows = _topic_rows(spark, KafkaSettings.of(servers, options), topic, progress_topic, sink)
    else:
        raise InvalidOption(
            f"What is to be read is {text!r}.",
            rule="It is a directory, as a path or file:///path, or a topic, as kafka://host:port/topic.",
            remedy="Name it as it was named to write_stream.",
            option="source",
            value=text,
        )
    return rows if with_ts else rows.drop(TS_COLUMN)


def _directory_rows(spark: SparkSession, path: Path, sink: str | None) -> DataFrame:
    told = read_directory_info(path)
    if told is None:
        raise TableUnfit(
            f"There is nothing in {path} that says which rows are closed.",
            rule="A sink that writes files keeps its records there, in _floodmark.",
            remedy="Name the directory that a sink writes to.",
            table=str(path),
        )
    schema = StructType.fromJson(json.loads(told["schema"]))
    parts = [part for record in read_manifests(path, None if sink is None else [sink]) for part in record.parts]
    files = [f"file://{_escape_pattern(str(path))}/{part.name}" for part in parts]
    return spark.read.schema(schema).parquet(*files) if files else spark.createDataFrame([], schema)


def _topic_rows(
    spark: SparkSession, settings: "KafkaSettings", topic: str, progress_topic: str | None, sink: str | None
) -> DataFrame:
    from floodmark.kafka import KafkaCluster
    from floodmark.sinks.kafka.topics import progress_topic_of
    from floodmark.sinks.manifest.topic import closed_tasks

    cluster = KafkaCluster(settings)
    known = cluster.find_topic(topic)
    if known is None:
        raise UnknownTopic(
            f"There is no topic {topic!r}.",
            rule="A topic is there before it is read.",
            remedy="Check its name.",
            topic=topic,
        )
    # In this order: whatever is closed by a record was in the topic before.
    tasks = closed_tasks(settings, progress_topic or progress_topic_of(topic), sink)
    partitions = range(known.partitions)
    starts, ends = cluster.starts(topic, partitions), cluster.ends(topic, partitions)
    ranges = [
        (part, first, min(first + _ROWS_A_TASK, ends[part]))
        for part in partitions
        for first in range(starts[part], ends[part], _ROWS_A_TASK)
    ]
    numbered = [(number, *one) for number, one in enumerate(ranges)]
    if not ranges or not tasks:
        return spark.createDataFrame([], "key BINARY, value BINARY, _ts TIMESTAMP")
    asked = spark.createDataFrame(numbered, _RANGE_SCHEMA).repartitionById(len(ranges), F.col("number"))
    rows = asked.mapInArrow(partial(_fetch_closed, settings, topic, frozenset(tasks)), _RECORD_SCHEMA)
    return rows.dropDuplicates(["task", "number"]).select("key", "value", "_ts")


def _fetch_closed(
    settings: "KafkaSettings", topic: str, tasks: frozenset[str], asked: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """As a task, return the rows of ranges that were sent by tasks that count."""
    from floodmark.kafka import Fetcher
    from floodmark.sinks.manifest.topic import INDEX_HEADER, TASK_HEADER

    # Rows that are in no transaction need not wait for others that are.
    fetcher = Fetcher(settings, committed=False)
    schema = pa.schema(_RECORD_FIELDS)
    try:
        for batch in asked:
            for one in batch.to_pylist():
                for records in fetcher.read(topic, one["part"], one["first"], one["behind"]):
                    rows = []
                    for record in records:
                        headers = dict(record.headers() or ())
                        task = (headers.get(TASK_HEADER) or b"").decode(errors="replace")
                        if task in tasks:
                            ts, index = int(headers[TS_HEADER]), int(headers[INDEX_HEADER])
                            rows.append((record.key(), record.value(), ts, task, index))
                    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
                    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    finally:
        fetcher.close()


def _escape_pattern(path: str) -> str:
    """Return a path that Spark takes for itself, and for no pattern."""
    return "".join(f"\\{character}" if character in "{}[]*?\\" else character for character in path)
