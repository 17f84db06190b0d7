"""The Spark example of the README runs."""

import json
import re
from pathlib import Path

from pyspark.sql import SparkSession

README = Path(__file__).parents[2] / "README.md"
_, EXAMPLE = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_example_closes_the_window_that_the_mark_closes(spark: SparkSession, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    lines = [
        {"t": "2026-01-01T00:00:10Z", "item": "tea"},
        {"t": "2026-01-01T00:00:50Z", "item": "milk"},
        {"t": "2026-01-01T00:01:10Z", "item": "tea"},
        {"mark": "2026-01-01T00:01:00Z"},
    ]
    (orders / "1.json").write_text("\n".join(map(json.dumps, lines)))
    names: dict[str, object] = {}
    exec(compile(EXAMPLE.replace("orders/", str(orders)), "README.md", "exec"), names)
    query = names["query"]
    query.awaitTermination(60)  # type: ignore[attr-defined]
    assert [row["count"] for row in spark.table("counts").collect()] == [2]
