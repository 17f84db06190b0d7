"""The password of a home in PostgreSQL is in no plan. tests/crash/spark/test_secrets.py has logs and Spark Connect."""

import pytest
from pyspark.sql import SparkSession

import floodmark as fm
from floodmark.streams import connect
from floodmark.testing import PostgresServer

PASSWORD = "hunter22xyz"


def test_explain_shows_the_address_of_the_home_and_no_password(
    spark: SparkSession, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    postgres.execute(f"CREATE ROLE owner_of_plans LOGIN PASSWORD '{PASSWORD}'")
    postgres.execute("CREATE DATABASE plans OWNER owner_of_plans")
    home = postgres.url_of("plans", "owner_of_plans", PASSWORD)
    with connect(home) as opened:
        opened.create_stream("orders", "id BIGINT, t TIMESTAMP", time_columns="t")
    rows = spark.readStream.format("rate").load()
    frames = [
        fm.read_stream(spark, "orders", home=home),
        fm.with_watermark(rows, "timestamp", home=home),
        fm.with_watermark(rows, "timestamp", home=home, late="count"),
    ]
    for frame in frames:
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
    shown = capsys.readouterr().out
    assert "postgresql://owner_of_plans@" in shown
    assert PASSWORD not in shown
