"""A driver that is killed while its queries are inside transactions with flushed rows, one for each kind of target.

What is in the targets is read with the clients of Kafka, SQLite, Delta Lake and Parquet, not with the project's own.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, KafkaError, TopicPartition
from deltalake import DeltaTable

from floodmark.streams import connect
from floodmark.testing import KafkaBroker
from support.spark import SCRIPTS
from support.spark.drivers.target_driver import PLACES, STREAM_IN_KAFKA
from support.spark.sink_rounds import end_group
from support.spark.sink_shop import Shop
from support.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("t", pa.timestamp("us", "UTC"))])


class Targets:
    """What is in each target, as other programs see it."""

    def __init__(self, directory: Path, servers: str) -> None:
        self.directory, self.servers = directory, servers

    def topic(self, name: str) -> str:
        if name != STREAM_IN_KAFKA:
            return f"{self.directory.name}-{name}"
        ((log,),) = self.store("SELECT log FROM stream WHERE name = 'rows-in-kafka'")
        return str(json.loads(log)["topic"])

    def store(self, query: str) -> list[tuple[bytes, ...]]:
        with sqlite3.connect(self.directory / "home" / "home.db") as database:
            return database.execute(query).fetchall()

    def records(self, topic: str, level: str) -> list[tuple[bytes | None, bytes, dict[str, bytes]]]:
        """Return the records of a topic as (key, value, headers)."""
        settings = {"bootstrap.servers": self.servers, "group.id": "outside", "isolation.level": level}
        consumer = Consumer({**settings, "enable.partition.eof": True, "enable.auto.commit": False})
        found = []
        try:
            parts = consumer.list_topics(topic, timeout=10).topics[topic].partitions
            consumer.assign([TopicPartition(topic, part, 0) for part in parts])
            ended: set[int] = set()
            while len(ended) < len(parts):
                record = consumer.poll(20)
                assert record is not None, f"{topic} does not end"
                if record.error() is None:
                    found.append((record.key(), record.value(), dict(record.headers() or ())))
                else:
                    assert record.error().code() == KafkaError._PARTITION_EOF, record.error()
                    ended.add(record.partition())
        finally:
            consumer.close()
        return found

    def in_topic(self, name: str, level: str = "read_committed") -> Counter[int]:
        return Counter(json.loads(value)["id"] for _, value, _ in self.records(self.topic(name), level))

    def closed_in_topic(self) -> Counter[int]:
        """Return the rows of tasks that a closing record names; of several with one number the first counts."""
        topic, tasks, number = self.topic("staged"), set(), 0
        for key, value, _ in self.records(f"{topic}.progress", "read_uncommitted"):
            record = json.loads(value)
            if (key or b"").startswith(b"floodmark.closing/") and record["number"] == number + 1:
                number += 1
                tasks |= {task for task, _ in record["parts"]}
        sent = {
            (headers["floodmark.task"], headers["floodmark.index"]): json.loads(value)["id"]
            for _, value, headers in self.records(topic, "read_uncommitted")
            if headers["floodmark.task"].decode() in tasks
        }
        return Counter(sent.values())

    def in_files(self) -> Counter[int]:
        directory = self.directory / "file"
        parts = [
            part
            for record in sorted((directory / "_floodmark" / "closings" / "file").glob("*.json"))
            for part, _ in json.loads(record.read_bytes())["parts"]
        ]
        return Counter(row for part in parts for row in pq.read_table(directory / part)["id"].to_pylist())

    def in_table(self, name: str) -> Counter[int]:
        rows = pa.table(DeltaTable(str(self.directory / name)).to_pyarrow_table())
        return Counter(rows["id"].to_pylist())

    def in_store(self) -> Counter[int]:
        batches = self.store(
            "SELECT body FROM stream_batch WHERE stream_id = (SELECT stream_id FROM stream WHERE name = 'rows')"
        )
        rows = (pa.ipc.read_record_batch(pa.py_buffer(body), SCHEMA).column("id") for (body,) in batches)
        return Counter(number for column in rows for number in column.to_pylist())

    def seen(self, name: str) -> Counter[int]:
        """Return the rows of a target that count."""
        if name in ("atomic", "parallel", STREAM_IN_KAFKA):
            return self.in_topic(name)
        if name in ("delta", "upsert", "upsert-committed"):
            return self.in_table(name)
        return {"staged": self.closed_in_topic, "file": self.in_files, "stream": self.in_store}[name]()

    def flushed(self, name: str) -> int:
        """Return how many rows of a target have arrived there, whether they count or not."""
        if name in ("delta", "file", "upsert"):
            files = (self.directory / name).rglob("*.parquet")
            return sum(pq.read_metadata(file).num_rows for file in files)
        if name == "stream":
            staged = self.store("SELECT SUM(events) FROM stream_transaction_batch WHERE stream_id = "
                                "(SELECT stream_id FROM stream WHERE name = 'rows')")  # fmt: skip
            return int(staged[0][0])
        return self.in_topic(name, "read_uncommitted").total()


def start(directory: Path, servers: str, held: Path | None) -> "subprocess.Popen[str]":
    settings = {"directory": str(directory), "servers": servers, "held": None if held is None else str(held)}
    with (directory / "driver.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, str(SCRIPTS / "target_driver.py"), json.dumps(settings)],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def test_each_target_has_each_row_once_after_a_kill_inside_a_transaction(tmp_path: Path, broker: KafkaBroker) -> None:
    shop, targets, held = Shop(tmp_path), Targets(tmp_path, broker.servers), tmp_path / "held"
    shop.trade(rows=40)
    held.mkdir()
    with connect(shop.home, log=broker.url, controller=False) as home:
        home.create_stream("rows-in-kafka", "id BIGINT, t TIMESTAMP", time_columns="t")
    driver = start(tmp_path, broker.servers, held)
    try:
        # Of the parallel one each of two tasks is held.
        everything = sorted([*PLACES, "parallel"])
        wait_until(lambda: driver.poll() is not None or sorted(path.stem for path in held.iterdir()) == everything, 300)
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3_000:]
        wanted = shop.wanted("rows")
        for name in set(PLACES) - {"upsert-committed"}:
            assert (targets.seen(name).total(), targets.flushed(name)) == (0, wanted.total()), name
        assert targets.seen("upsert-committed") == wanted
        checkpoint = tmp_path / "checkpoints" / "upsert-committed"
        assert (checkpoint / "offsets" / "0").exists()
        assert not (checkpoint / "commits" / "0").exists()
        os.killpg(driver.pid, signal.SIGKILL)
        assert driver.wait(30) == -signal.SIGKILL
    finally:
        end_group(driver)
    for name in set(PLACES) - {"upsert-committed"}:
        assert not targets.seen(name) - wanted, name
    shop.trade(rows=8)
    driver = start(tmp_path, broker.servers, None)
    try:
        assert driver.wait(300) == 0, (tmp_path / "driver.log").read_text()[-3_000:]
    finally:
        end_group(driver)
    for name in PLACES:
        assert targets.seen(name) == shop.wanted("rows"), name
    shop.close()
