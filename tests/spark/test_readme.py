"""The Spark example of the README runs."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"
_, EXAMPLE = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


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
