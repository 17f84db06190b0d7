"""From a stream to a stream to a topic, by two queries whose driver is killed again and again: each row once."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from floodmark.errors import StateError
from floodmark.kafka import Fetcher, KafkaCluster, KafkaSettings, MarkRecord
from floodmark.streams import connect
from floodmark.testing import KafkaBroker
from support.sinks.stream_process import broken_marks
from support.spark import SCRIPTS
from support.spark.sink_rounds import end_group
from support.spark.sink_shop import START, Shop, found, windows_in

DRIVER = SCRIPTS / "stream_sink_driver.py"
KILLS = (("sink: rows flushed", "tens", 1), ("sink: progress flushed", "tens", 2))
MORE_KILLS = (("sink: progress flushed", "thirties", 1),)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.close()


def trade(shop: Shop) -> None:
    """Let time pass, also while nobody looks after streams of which a driver that was killed had the lease."""
    try:
        shop.trade()
    except StateError:
        with connect(shop.home) as home:
            for name in ("orders", "payments"):
                home.stream(name).await_mark(START + timedelta(seconds=shop.watermark), timeout="1 minute")


def drive(directory: Path, broker: KafkaBroker, topic: str, kill: tuple[str, str, int] | None = None) -> int:
    settings = {
        "home": str(directory / "home"),
        "checkpoints": str(directory / "checkpoints"),
        "servers": broker.servers,
        "topic": topic,
        "kill": kill,
    }
    with (directory / "driver.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), json.dumps(settings)],
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=150)
        finally:
            end_group(process)
    said = (directory / "driver.log").read_text()[-3_000:]
    assert code == (0 if kill is None else -signal.SIGKILL), said
    return code


def told(broker: KafkaBroker, topic: str) -> list[float]:
    """Return the times that the topic has told, in seconds after the shop's first."""
    settings, name = KafkaSettings.of(broker.servers), f"{topic}.marks"
    cluster, fetcher = KafkaCluster(settings), Fetcher(settings)
    if cluster.find_topic(name) is None:
        return []
    try:
        records = [record for piece in fetcher.read(name, 0, 0, cluster.ends(name, [0])[0]) for record in piece]
    finally:
        fetcher.close()
    lowers = [MarkRecord.load(record.value()).lower for record in records]
    return [lower / 1e6 - START.timestamp() for lower in lowers if lower is not None]


@pytest.mark.parametrize(("log", "kills"), [("home", KILLS), ("kafka", MORE_KILLS)], indirect=["log"])
def test_each_row_is_there_once_and_no_watermark_is_ahead_of_the_first_writer(
    shop: Shop, tmp_path: Path, broker: KafkaBroker, topic_name: str, log: str, kills: tuple[tuple[str, str, int], ...]
) -> None:
    for number, kill in enumerate(kills):
        trade(shop)
        drive(tmp_path, broker, topic_name, kill)
        assert max(told(broker, topic_name), default=0) <= shop.watermark
        if number == len(kills) - 1:
            shutil.rmtree(tmp_path / "checkpoints" / kill[1])
    trade(shop)
    drive(tmp_path, broker, topic_name)
    with connect(shop.home) as home:
        tens = home.stream("tens")
        assert (tens.info.log is not None) == (log == "kafka")
        assert windows_in(tens) == shop.wanted("windows")
        lowers = [entry.lower for entry in tens.marks("t") if entry.lower is not None]
        assert lowers == sorted(lowers)
        assert broken_marks(tens, "t") == []
        times = told(broker, topic_name)
        assert times == sorted(times)
        assert times[-1] <= lowers[-1] / 1e6 - START.timestamp() <= shop.watermark
    assert found(broker.servers, topic_name, "chained") == shop.wanted("chained")
