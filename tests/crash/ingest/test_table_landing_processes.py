"""Processes that land in a table of Delta Lake and are killed."""

import json
import signal
from pathlib import Path
from time import sleep

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from floodmark.control import Home
from floodmark.ingest import Ingestion
from floodmark.ingest.landing.table import BEGUN, COMMITTED, STAGED
from support.ingest import table_landings
from support.ingest.table_landings import days, order, table_rows
from support.processes import run


@pytest.mark.parametrize(
    ("mode", "where"),
    [
        ("append", STAGED),
        pytest.param("append", COMMITTED, marks=pytest.mark.full),
        ("replace", BEGUN),
        pytest.param("replace", STAGED, marks=pytest.mark.full),
        ("replace", COMMITTED),
    ],
)
def test_a_process_that_dies_anywhere_is_continued_by_another(tmp_path: Path, mode: str, where: str) -> None:
    rows = [order(n, n / 4, f"n{n}") for n in range(16)]
    (tmp_path / "rows").write_text("\n".join(map(json.dumps, rows)))

    def process(where: str) -> tuple[int, str]:
        return run(table_landings.__name__, str(tmp_path), str(tmp_path / "rows"), where, mode)

    code, printed = process(where)
    if where == BEGUN:
        # The first run made the table, and had nobody to take over from.
        assert code == 0, printed
        with Home.open(tmp_path / "home") as home:
            Ingestion(home).edit("orders", days(1, 2), covered=False, actor="me")
        code, printed = process(where)
    assert code == -signal.SIGKILL, printed
    sleep(0.4)
    code, printed = process("nowhere")
    assert code == 0, printed
    assert json.loads(printed)["failed"] == 0
    assert table_rows(tmp_path / "table") == [(n, f"n{n}") for n in range(16)]
    used = {Path(uri) for uri in DeltaTable(str(tmp_path / "table")).file_uris()}
    left = set((tmp_path / "table").rglob("*.parquet")) - used
    assert where == BEGUN or not left, "what the dead have staged is removed"
    assert sum(pq.read_metadata(file).num_rows for file in used) == 16
