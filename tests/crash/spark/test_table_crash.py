"""Drivers that are killed while they write to tables, directories and topics, and tasks that fail: each row is once."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from floodmark.errors import TableUnfit, UnknownTopic
from floodmark.sinks.target import COMMITTED, HOLD_ADVANCED, ROWS_FLUSHED
from floodmark.testing import KafkaBroker
from support.spark import SCRIPTS
from support.spark.sink_shop import Shop
from support.spark.sink_shop import found as in_topic
from support.spark.table_shop import KINDS, TARGETS, found

SCRIPT = SCRIPTS / "table_driver.py"
KILLS = ((ROWS_FLUSHED, "delta-windows", 2), (COMMITTED, "file-windows", 2), (HOLD_ADVANCED, "topic-windows", 2))


def drive(directory: Path, servers: str, **settings: Any) -> int:
    told = {"directory": str(directory), "servers": servers, "checkpoints": "checkpoints", **settings}
    finished = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(told)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        start_new_session=True,
    )
    assert finished.returncode in (0, -signal.SIGKILL), finished.stderr[-3000:]
    return finished.returncode


def test_each_row_and_window_is_there_once_after_drivers_were_killed_and_tasks_have_failed(
    spark: SparkSession, broker: KafkaBroker, tmp_path: Path
) -> None:
    shop = Shop(tmp_path)
    for kill in KILLS:
        shop.trade()
        assert drive(tmp_path, broker.servers, kill=kill) == -signal.SIGKILL
        for target in TARGETS:
            for kind in KINDS:
                try:
                    seen = found(spark, target, kind, tmp_path, broker.servers)
                except (TableUnfit, UnknownTopic):
                    # The driver did not come to it.
                    seen = Counter()
                assert seen <= shop.wanted(kind), (kill, target, kind)
    shop.trade()
    # The last one has no checkpoint, and cuts its batches otherwise.
    assert drive(tmp_path, broker.servers, checkpoints="others", max_rows=70) == 0
    for target in TARGETS:
        for kind in KINDS:
            assert found(spark, target, kind, tmp_path, broker.servers) == shop.wanted(kind), (target, kind)
    # Tasks that died have left rows in the topic, which do not count.
    sent = in_topic(broker.servers, f"{tmp_path.name}-rows", "rows")
    assert sent.total() > shop.wanted("rows").total()
    shop.close()
