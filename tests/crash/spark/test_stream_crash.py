"""A driver that is killed while it reads a stream: each row counts once, in the place it had."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from floodmark.streams import StreamHome, connect
from floodmark.testing import PostgresServer
from support.spark import SCRIPTS
from support.spark.stream_feed import BASE, SECOND, StreamFeed, history, tumbling

SCRIPT = SCRIPTS / "stream_crash_script.py"


def run(directory: Path, kill_in: int) -> int:
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory), str(kill_in)],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        start_new_session=True,
    )
    assert finished.returncode in (0, -signal.SIGKILL), finished.stderr[-3000:]
    return finished.returncode


def test_a_driver_killed_again_and_again_counts_each_row_once(spark: SparkSession, tmp_path: Path) -> None:
    feed = StreamFeed(spark, tmp_path)
    steps = history(17)
    feed.play(steps[:9])
    assert run(tmp_path, 2) == -signal.SIGKILL
    # What comes meanwhile is bound to other timestamps, and changes nothing of what the killed batch had.
    feed.play(steps[9:])
    assert run(tmp_path, 3) == -signal.SIGKILL
    assert run(tmp_path, -1) == 0
    found = [tuple(one) for file in (tmp_path / "out").glob("*.json") for one in json.loads(file.read_text())]
    wanted: list[Any] = feed.collect(tumbling(feed, {}))
    assert sorted(found) == sorted((int(start.timestamp()), n, ids) for start, n, ids in wanted)
    feed.close()


def test_a_home_in_postgresql_is_read_by_every_task(spark: SparkSession, postgres: PostgresServer) -> None:
    import floodmark as fm

    url = postgres.new_database()
    with connect(url) as home:
        _fill(home)
        read = spark.read.format("floodmark").option("stream", "orders").option("home", url).option("rowsPerTask", 2)
        assert sorted(row.id for row in read.load().collect()) == list(range(10))
        frame = fm.read_stream(spark, "orders", home=url)
        assert frame.isStreaming
        assert fm.read_bindings(spark, "orders", home=url).selectExpr("sum(end_offset - first_offset)").first()[0] == 10  # type: ignore[index]


def _fill(home: StreamHome) -> None:
    stream = home.create_stream("orders", "id BIGINT, t TIMESTAMP", segments=3, time_columns="t")
    with stream.writer("w") as writer:
        from datetime import UTC, datetime

        rows = [{"id": n, "t": datetime.fromtimestamp(BASE // SECOND + n, UTC)} for n in range(10)]
        writer.write_batch(rows, key=[str(n) for n in range(10)])
        writer.note_time(BASE + 10 * SECOND)
        stream.await_mark(BASE + 10 * SECOND)
