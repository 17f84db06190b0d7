"""The examples of the README run."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from floodmark.kafka import KafkaCluster, KafkaSettings
from floodmark.testing import KafkaBroker

README = Path(__file__).parents[2] / "README.md"
_, EXAMPLE, STREAM, TOPICS, SINK, GROUP = re.findall(
    r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL
)


def test_the_example_waits_for_the_slower_region(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOODMARK_HOME", str(tmp_path / "home"))
    orders = tmp_path / "orders"
    orders.mkdir()
    start = int(time.time()) // 60 * 60 - 600
    rows = [(10, "north"), (50, "south"), (70, "north"), (75, "south"), (200, "north")]
    lines = [json.dumps({"t": f"{datetime.fromtimestamp(start + t, UTC):%FT%TZ}", "region": who}) for t, who in rows]
    (orders / "1.json").write_text("\n".join(lines))
    names: dict[str, object] = {}
    exec(compile(EXAMPLE.replace("orders/", str(orders)), "README.md", "exec"), names)
    query = names["query"]
    query.awaitTermination(60)  # type: ignore[attr-defined]
    assert [row["count"] for row in spark.table("counts").collect()] == [2]


def test_the_stream_is_counted_per_minute_written_once_and_read_by_a_group(
    spark: SparkSession,
    broker: KafkaBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # The workers of the session that runs already are in another directory.
    names: dict[str, object] = {}
    exec(compile(STREAM.replace('"shop"', repr(str(tmp_path / "shop"))), "README.md", "exec"), names)
    frame = names["per_minute"]
    writer = frame.select("count").writeStream.format("memory").queryName("per_minute")  # type: ignore[attr-defined]
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(60)
    assert [row["count"] for row in spark.table("per_minute").collect()] == [3, 3]
    sink = SINK.replace('"shop"', repr(str(tmp_path / "shop"))).replace("localhost:9092", broker.servers)
    exec(compile(sink.replace("checkpoints", str(tmp_path / "checkpoints")), "README.md", "exec"), names)
    cluster = KafkaCluster(KafkaSettings.of(broker.url))
    give_up = time.monotonic() + 60
    # The first minute, and the end of its transaction; the second one is still open at its end.
    while cluster.ends("per-minute", [0]) != {0: 2} and time.monotonic() < give_up:
        time.sleep(0.1)
    names["query"].stop()  # type: ignore[attr-defined]
    assert cluster.ends("per-minute", [0]) == {0: 2}
    exec(compile(GROUP, "README.md", "exec"), {})
    said = capsys.readouterr().out.strip()
    assert said == re.search(r"# (6 up to .*)", GROUP)[1]  # type: ignore[index]
    names["home"].close()  # type: ignore[attr-defined]


def test_a_topic_is_read_with_its_time(
    spark: SparkSession, broker: KafkaBroker, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOODMARK_HOME", str(tmp_path / "home"))
    settings = KafkaSettings.of(broker.url)
    KafkaCluster(settings).create_topic(topic_name, 2, {})
    producer = Producer(settings.client())
    for number in range(4):
        value = {"id": number, "at": f"2026-01-31T12:00:0{number}Z"}
        producer.produce(topic_name, json.dumps(value), partition=number % 2)
    producer.flush(20)
    example = TOPICS.replace("localhost:9092", broker.servers).replace('    "orders",\n', f'    "{topic_name}",\n')
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    frame = names["orders"]
    writer = frame.select("id").writeStream.format("memory").queryName("ids_of_topic")  # type: ignore[attr-defined]
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination(60)
    assert sorted(row["id"] for row in spark.table("ids_of_topic").collect()) == [0, 1, 2, 3]
