"""The demo tells the truth about its own run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from floodmark.spark import demo

ROW = re.compile(r"^(?P<label>[a-z -]+?) {2,}(?P<plain>[\d,]+) +(?P<floodmark>[\d,]+)$", re.MULTILINE)


def test_the_demo_as_a_person_runs_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "floodmark.spark.demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = {
        row["label"]: [int(row[c].replace(",", "")) for c in ("plain", "floodmark")]
        for row in ROW.finditer(done.stdout)
    }
    orders = demo.ORDERS_PER_PARTITION * len(demo.PARTITIONS)
    minutes = demo.SPAN // demo.MINUTE
    assert table["rows in"] == [orders, orders]
    counted, lost = table["rows counted in windows"], table["rows lost"]
    assert [c + x for c, x in zip(counted, lost, strict=True)] == table["rows in"]
    assert 0 < lost[0] <= demo.ORDERS_PER_PARTITION, "only orders of the slow partition can be late"
    assert lost[1] == 0
    assert table["windows emitted"] == [minutes, minutes]
    assert 0 < table["windows with a wrong count"][0] <= minutes
    assert table["windows with a wrong count"][1] == 0
    assert table["micro-batches with input"][0] == table["micro-batches with input"][1]
    assert len(done.stderr.splitlines()) <= 3, "Spark's log must not bury the table"
    assert list(tmp_path.iterdir()) == []


class _NoSpark:
    def stop(self) -> None:
        pass


@pytest.mark.parametrize(("counted", "wrong", "code"), [(10, 0, 0), (9, 1, 1), (10, 2, 1)])
def test_a_lost_row_or_a_wrong_window_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, counted: int, wrong: int, code: int
) -> None:
    outcome = demo.Outcome(rows_in=10, rows_counted=counted, windows_emitted=3, windows_wrong=wrong, micro_batches=1)
    monkeypatch.setattr(demo, "session", lambda name, conf: _NoSpark())
    monkeypatch.setattr(demo, "compare", lambda spark, directory: (outcome, outcome))
    assert demo.main() == code


def test_no_order_is_more_than_the_allowed_disorder_behind_its_own_partition() -> None:
    for times, arrivals in demo._orders().values():
        behind, newest = 0, times[0]
        assert (arrivals[1:] >= arrivals[:-1]).all()
        for t in times:
            newest = max(newest, t)
            behind = max(behind, int(newest - t))
        assert 0 < behind < demo.DISORDER
