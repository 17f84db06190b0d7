"""Passwords of the home and of Kafka are in no plan, no event log and no progress report of Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from floodmark.kafka import KafkaCluster, KafkaSettings
from floodmark.testing import KafkaBroker, PostgresServer
from support.spark import SCRIPTS
from support.spark.spark_feed import SHORT_LIVED

PASSWORD = "hunter22xyz"
ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_TESTING": "1",
    "JDK_JAVA_OPTIONS": SHORT_LIVED["spark.driver.extraJavaOptions"],
}


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_spark_shows_and_logs_no_password(
    kind: str, tmp_path: Path, postgres: PostgresServer, broker: KafkaBroker, topic_name: str
) -> None:
    user, database = f"owner_{kind}", f"secrets_{kind}"
    postgres.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'")
    postgres.execute(f"CREATE DATABASE {database} OWNER {user}")
    home = postgres.url_of(database, user, PASSWORD)
    KafkaCluster(KafkaSettings.of(broker.url)).create_topic(topic_name, 1, {})
    done = subprocess.run(
        [
            sys.executable,
            str(SCRIPTS / "secrets_script.py"),
            kind,
            tmp_path,
            home,
            broker.servers,
            topic_name,
            PASSWORD,
        ],
        cwd=tmp_path,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("stream", "topics", "watermark", "late", "sink"):
        assert f"\n{name} " in done.stdout
    assert "Analyzed Logical Plan" in done.stdout
    logged = [file for file in (tmp_path / "log").rglob("*") if file.is_file()]
    assert any("QueryProgressEvent" in file.read_text() for file in logged)
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert PASSWORD not in done.stdout + done.stderr
    assert PASSWORD.encode() not in stored
