"""Reads the rows of sinks without transactions, each row once (`read_closed`)."""

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
    """Return the rows that sinks have written to a directory, or to a topic without transactions, each row once.

    ```python
    import floodmark as fm

    query = fm.write_stream(orders, to="file:///data/orders", name="orders", checkpoint="checkpoints/orders")
    fm.read_closed(fm.session(), "/data/orders").count()
    ```

    Rows of open batches, of failed or repeated attempts and of fenced processes are left out. The result has the rows
    that are closed now; call it again for newer ones.

    Programs without Floodmark can read the closing records, which are JSON: in a directory the files
    `_floodmark/closings/<sink>/<number>.json`, for a topic the records of `<topic>.progress` whose key begins with
    `floodmark.closing/`. They are numbered from 1 for each sink; the first record of a number counts. Their `parts`
    name the closed files, or the values of the header `floodmark.task`. Repeated rows of a topic have the same
    `floodmark.task` and `floodmark.index`.

    Args:
        spark: The session.
        source: A directory, as a path or file:///path, or a topic, as kafka://host:port/topic.
        sink: The name of one sink; by default the rows of all sinks.
        with_ts: Whether rows have their timestamp as `_ts`.
        progress_topic: The topic of closing records; by default `<topic>.progress`.
        options: Options of Kafka's client, such as {"kafka.sasl.password": ...}.

    Returns:
        A batch DataFrame: the columns of the sink, or for a topic `key` and `value` as bytes.

    Raises:
        InvalidOption: `source` is neither a directory nor a topic.
        TableUnfit: No sink has written to the directory.
        UnknownTopic: There is no such topic.
    """
    text = str(source)
    scheme, separator, rest = text.partition("://")
    if not separator or (scheme == "file" and rest.startswith("/")):
        rows = _directory_rows(spark, Path(rest if separator else text).absolute(), sink)
    elif scheme == "kafka" and rest.count("/") == 1 and not rest.endswith("/"):
        # Imported here: only topics need Kafka's client.
        from floodmark.kafka import KafkaSettings

        servers, _, topic = rest.partition("/")
        rows = _topic_rows(spark, KafkaSettings.of(servers, options), topic, progress_topic, sink)
    else:
        raise InvalidOption(
            f"source is {text!r}.",
            rule="It must be a directory, as a path or file:///path, or a topic, as kafka://host:port/topic.",
            remedy="Pass the address that was passed to write_stream as to=.",
            option="source",
            value=text,
        )
    return rows if with_ts else rows.drop(TS_COLUMN)


def _directory_rows(spark: SparkSession, path: Path, sink: str | None) -> DataFrame:
    info = read_directory_info(path)
    if info is None:
        raise TableUnfit(
            f"The directory {path} has no closing records.",
            rule="A sink that writes files keeps them there, in _floodmark.",
            remedy="Pass the directory that was passed to write_stream as to=file://...",
            table=str(path),
        )
    schema = StructType.fromJson(json.loads(info["schema"]))
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
    topic_info = cluster.find_topic(topic)
    if topic_info is None:
        raise UnknownTopic(
            f"There is no topic {topic!r}.",
            rule="A topic must exist before it is read.",
            remedy="Check its name, and the brokers; write_stream creates the topic when a sink first starts.",
            topic=topic,
        )
    # Read the closing records first: the rows they close are then already in the topic.
    tasks = closed_tasks(settings, progress_topic or progress_topic_of(topic), sink)
    partitions = range(topic_info.partitions)
    starts, ends = cluster.starts(topic, partitions), cluster.ends(topic, partitions)
    ranges = [
        (part, first, min(first + _ROWS_A_TASK, ends[part]))
        for part in partitions
        for first in range(starts[part], ends[part], _ROWS_A_TASK)
    ]
    numbered = [(number, *offsets) for number, offsets in enumerate(ranges)]
    if not ranges or not tasks:
        return spark.createDataFrame([], "key BINARY, value BINARY, _ts TIMESTAMP")
    inputs = spark.createDataFrame(numbered, _RANGE_SCHEMA).repartitionById(len(ranges), F.col("number"))
    rows = inputs.mapInArrow(partial(_fetch_closed, settings, topic, frozenset(tasks)), _RECORD_SCHEMA)
    return rows.dropDuplicates(["task", "number"]).select("key", "value", "_ts")


def _fetch_closed(
    settings: "KafkaSettings", topic: str, tasks: frozenset[str], ranges: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Return, in a task, the rows of offset ranges that were sent by closed tasks."""
    from floodmark.kafka import Fetcher
    from floodmark.sinks.manifest.topic import INDEX_HEADER, TASK_HEADER

    # The rows are in no transaction, so do not wait for open transactions of others.
    fetcher = Fetcher(settings, committed=False)
    schema = pa.schema(_RECORD_FIELDS)
    try:
        for batch in ranges:
            for offsets in batch.to_pylist():
                for records in fetcher.read(topic, offsets["part"], offsets["first"], offsets["behind"]):
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
    """Return a path with the characters escaped that Spark takes for a pattern."""
    return "".join(f"\\{character}" if character in "{}[]*?\\" else character for character in path)
