"""Jobs on Spark, from real databases, files and a service, into tables and streams."""

import json
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import floodmark as fm
from floodmark.errors import SecretMissing
from floodmark.ingest import Ingestion, Range, RunResult, load_job
from floodmark.testing import PostgresServer
from support.ingest.rest_server import Says, rest_service
from support.spark.ingest_shop import FIRST, SQLITE, fill_sqlite, in_sqlite, job_file, landed, landed_by_duckdb, orders

DAY = 86_400_000_000
START = 18_262 * DAY


@pytest.fixture
def ingest(spark: SparkSession, tmp_path: Path) -> Any:
    def ingest(file: Path, **more: Any) -> RunResult:
        return fm.ingest_job(file, home=tmp_path / "home", spark=spark, **more)

    return ingest


@pytest.fixture
def again(tmp_path: Path) -> Any:
    """Have days of a job read again."""

    def again(file: Path, first: int, last: int) -> None:
        with fm.connect(tmp_path / "home") as home:
            job = load_job(file).job
            Ingestion(home.home).backfill(job, Range(START + first * DAY, START + last * DAY), actor="me")

    return again


@pytest.fixture(scope="session")
def postgres() -> Any:
    with PostgresServer() as server:
        yield server


class TestTables:
    def test_a_table_is_row_by_row_what_the_source_is(self, ingest: Any, tmp_path: Path) -> None:
        fill_sqlite(tmp_path / "shop.db", orders(1000))
        file = job_file(tmp_path / "orders.toml", SQLITE, 'path = "landed"\nmode = "replace"')
        result = ingest(file)
        assert (result.succeeded, result.failed, result.rows) == (4, 0, 1000)
        wanted = in_sqlite(tmp_path / "shop.db")
        assert landed(tmp_path / "landed") == wanted
        assert landed_by_duckdb(tmp_path / "landed") == wanted
        assert ingest(file).planned == 0

    def test_days_that_are_read_again_are_replaced(self, ingest: Any, again: Any, tmp_path: Path) -> None:
        db = tmp_path / "shop.db"
        fill_sqlite(db, orders(400))
        file = job_file(tmp_path / "orders.toml", SQLITE + "\nsplits = 3", 'path = "landed"\nmode = "replace"')
        ingest(file)
        with sqlite3.connect(db) as changed:
            changed.execute("UPDATE orders SET note = 'changed' WHERE id % 3 = 0")
            changed.execute("DELETE FROM orders WHERE id BETWEEN 120 AND 180")
        before = in_sqlite(db)
        again(file, 1, 3)
        assert ingest(file).succeeded == 2
        found = {row[0]: row for row in landed(tmp_path / "landed")}
        inside = [row for row in before if FIRST + timedelta(days=1) <= row[-1] < FIRST + timedelta(days=3)]
        assert [found[row[0]] for row in inside] == inside
        assert sorted(found) == [n for n in range(400) if not 120 <= n <= 180]
        assert found[3][3] == "first 3", "what lies outside of the days stays as it was"

    def test_units_are_read_and_replaced_apart(self, ingest: Any, again: Any, tmp_path: Path) -> None:
        fill_sqlite(tmp_path / "shop.db", orders(100))
        units = '[units]\nname = "shop"\nlist = ["north", "south"]\n'
        file = job_file(tmp_path / "orders.toml", SQLITE, 'path = "landed"\nmode = "replace"', extra=units)
        assert ingest(file).succeeded == 8
        again(file, 0, 4)
        assert ingest(file).succeeded == 8
        assert landed(tmp_path / "landed") == in_sqlite(tmp_path / "shop.db")

    def test_a_missing_column_fails_the_cell_and_says_which_there_are(self, ingest: Any, tmp_path: Path) -> None:
        fill_sqlite(tmp_path / "shop.db", orders(10))
        wrong = SQLITE.replace('"updated_at"', '"update_at"')
        result = ingest(job_file(tmp_path / "orders.toml", wrong, 'path = "landed"\nmode = "replace"'))
        assert (result.succeeded, result.failed) == (0, 4)
        assert "updated_at" in result.errors[0]

    def test_a_missing_table_and_a_missing_database_are_told(self, ingest: Any, tmp_path: Path) -> None:
        target = 'path = "landed"\nmode = "replace"'
        nowhere = job_file(tmp_path / "orders.toml", SQLITE.replace("shop.db", "nowhere.db"), target)
        assert "nowhere.db" in ingest(nowhere).errors[0]
        assert not (tmp_path / "nowhere.db").exists()
        fill_sqlite(tmp_path / "shop.db", orders(10))
        result = ingest(job_file(tmp_path / "orders.toml", SQLITE.replace('"orders"', '"order"'), target))
        assert "order" in result.errors[0]
        assert not (tmp_path / "landed" / "_delta_log").exists()

    def test_a_table_that_another_job_owns_is_refused(self, ingest: Any, tmp_path: Path) -> None:
        fill_sqlite(tmp_path / "shop.db", orders(10))
        target = 'path = "landed"\nmode = "replace"'
        ingest(job_file(tmp_path / "orders.toml", SQLITE, target))
        result = ingest(job_file(tmp_path / "other.toml", SQLITE, target))
        assert (result.failed, result.succeeded, len(result.errors)) == (4, 0, 1)
        assert "The job 'orders' lands in the table" in result.errors[0]
        assert len(landed(tmp_path / "landed")) == 10

    def test_a_missing_secret_is_told_before_anything_is_read(self, ingest: Any, tmp_path: Path) -> None:
        source = 'kind = "sql"\nurl = "env:FLOODMARK_TEST_NOWHERE"\ntable = "orders"\nwatermark = "updated_at"'
        with pytest.raises(SecretMissing):
            ingest(job_file(tmp_path / "orders.toml", source, 'path = "landed"\nmode = "replace"'))

    @pytest.mark.parametrize(
        ("drift", "wanted"),
        [
            pytest.param("evolve", {"size": 5}, marks=pytest.mark.full),
            ("rescue", {"_rescued": '{"size":5}'}),
            ("freeze", None),
        ],
    )
    def test_a_new_column_drifts_as_the_job_says(
        self, ingest: Any, again: Any, tmp_path: Path, drift: str, wanted: dict[str, Any] | None
    ) -> None:
        db = tmp_path / "shop.db"
        fill_sqlite(db, orders(8))
        file = job_file(tmp_path / "orders.toml", SQLITE, f'path = "landed"\nmode = "replace"\ndrift = "{drift}"')
        ingest(file)
        with sqlite3.connect(db) as changed:
            changed.execute("ALTER TABLE orders ADD COLUMN size INTEGER")
            changed.execute("UPDATE orders SET size = 5")
        again(file, 0, 1)
        result = ingest(file)
        if wanted is None:
            assert "size" in result.errors[0]
            assert len(landed(tmp_path / "landed")) == 8
            return
        (name,) = wanted
        found = landed(tmp_path / "landed", f"SELECT id, {name} FROM t ORDER BY id")
        assert found == [(n, wanted[name] if n < 2 else None) for n in range(8)]


class TestMerging:
    def merged(self, tmp_path: Path, extra: str = "") -> Path:
        return job_file(tmp_path / "orders.toml", SQLITE + extra, 'path = "landed"\nmode = "merge"\nkeys = ["id"]')

    def test_the_newest_row_of_a_key_stays(self, ingest: Any, again: Any, tmp_path: Path) -> None:
        db = tmp_path / "shop.db"
        fill_sqlite(db, orders(40))
        # The same ids again, some later, some earlier, some at the same time twice.
        fill_sqlite(db, [(n, "x", 0.0, "late", "2020-01-03 12:00:00") for n in range(0, 40, 4)])
        fill_sqlite(db, [(n, "x", 0.0, "early", "2020-01-01 00:00:00") for n in range(30, 40)])
        assert ingest(self.merged(tmp_path)).is_whole
        newest: dict[int, tuple[Any, ...]] = {}
        for row in in_sqlite(db, "SELECT * FROM orders ORDER BY updated_at"):
            newest[row[0]] = row
        assert landed(tmp_path / "landed") == [newest[n] for n in sorted(newest)]
        again(self.merged(tmp_path), 0, 4)
        assert ingest(self.merged(tmp_path)).is_whole
        assert landed(tmp_path / "landed") == [newest[n] for n in sorted(newest)]

    def test_rows_without_a_watermark_are_read_in_each_run_if_asked_for(self, ingest: Any, tmp_path: Path) -> None:
        db = tmp_path / "shop.db"
        fill_sqlite(db, orders(8))
        fill_sqlite(db, [(100, "north", 1.0, "none", None)])
        assert "[watermark-missing]" in ingest(self.merged(tmp_path)).errors[0]
        assert ingest(self.merged(tmp_path, '\nnulls = "read"')).is_whole
        assert landed(tmp_path / "landed") == in_sqlite(db)

    def test_a_row_without_its_key_fails_the_cell(self, ingest: Any, tmp_path: Path) -> None:
        fill_sqlite(tmp_path / "shop.db", [*orders(8), (None, "north", 1.0, "no key", "2020-01-01 12:00:00")])
        result = ingest(self.merged(tmp_path))
        assert (result.succeeded, result.failed) == (3, 1)
        assert "[key-missing]" in result.errors[0]


class TestPostgres:
    def test_rows_that_change_while_they_are_read_are_there_once(
        self, ingest: Any, postgres: Any, tmp_path: Path
    ) -> None:
        url = postgres.new_database()
        (tmp_path / "url").write_text(url)
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("CREATE TABLE orders (id bigint, amount numeric(12, 2), at timestamptz, tags text[])")
            db.execute(
                "INSERT INTO orders SELECT n, n / 4.0, timestamptz '2020-01-01 00:00+00' + n * interval '100 seconds', "
                "ARRAY['a', n::text] FROM generate_series(0, 3455) n"
            )
            source = 'kind = "sql"\nurl = "file:url"\ntable = "orders"\nwatermark = "at"\nsplits = 2\n'
            source += 'watermark_type = "timestamptz"'
            file = job_file(tmp_path / "orders.toml", source, 'path = "landed"\nmode = "merge"\nkeys = ["id"]')

            def change(run: Any, outcome: Any) -> None:
                # They move to a day that is read last, or was read already.
                db.execute("UPDATE orders SET amount = -1, at = timestamptz '2020-01-04 23:00+00' WHERE id % 50 = 7")

            assert ingest(file, on_row=change, workers=1).is_whole
            rows = db.execute("SELECT id, amount, at, tags FROM orders ORDER BY id").fetchall()
        found = landed(tmp_path / "landed")
        assert [(n, a, at.astimezone(UTC), tags) for n, a, at, tags in rows] == found

    def test_a_database_that_is_away_fails_the_cells_and_says_no_password(self, ingest: Any, tmp_path: Path) -> None:
        (tmp_path / "url").write_text("postgresql://ann:verysecret@127.0.0.1:1/shop")
        source = 'kind = "sql"\nurl = "file:url"\ntable = "orders"\nwatermark = "at"'
        result = ingest(job_file(tmp_path / "orders.toml", source, 'path = "landed"\nmode = "replace"'))
        assert (result.failed, "127.0.0.1" in result.errors[0]) == (4, True)
        assert "verysecret" not in "".join(result.errors)


class TestServices:
    def test_a_service_that_fails_now_and_then_is_read_whole(self, ingest: Any, tmp_path: Path) -> None:
        seen: dict[str, int] = {}

        def script(asked: Any) -> Says:
            seen[asked.path] = seen.get(asked.path, 0) + 1
            if seen[asked.path] == 1:
                return Says(status=503)
            day = asked.query["since"][:10]
            page = int(asked.query["page"])
            found = [{"id": page * 10 + n, "at": f"{day}T10:00:00Z"} for n in range(10)] if page <= 3 else []
            return Says({"data": found})

        with rest_service(script) as service:
            source = (
                f'kind = "rest"\nurl = "{service.url}/orders"\nrecords = "data"\n'
                'params = { since = "{{range.from}}", until = "{{range.to}}" }\n'
                'pagination = { by = "page", param = "page" }'
            )
            target = 'path = "landed"\nmode = "replace"\nrange_column = "at"'
            file = job_file(tmp_path / "orders.toml", source, target)
            result = ingest(file)
        assert result.errors == ()
        assert (result.succeeded, result.rows) == (4, 120)
        found = landed(tmp_path / "landed", "SELECT at, count(*), count(DISTINCT id) FROM t GROUP BY at ORDER BY at")
        assert found == [(f"2020-01-0{n}T10:00:00Z", 30, 30) for n in range(1, 5)]


class TestFiles:
    @pytest.mark.long
    @pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.full)])
    def test_thousands_of_files_are_landed_once(self, ingest: Any, tmp_path: Path, count: int) -> None:
        drops = tmp_path / "drops"
        drops.mkdir()
        for n in range(count):
            (drops / f"orders-202001{n % 4 + 1:02}-{n}.csv").write_text(f"id,note\n{n},n{n}\n")
        source = (
            'kind = "files"\npaths = ["drops/*.csv"]\nformat = "csv"\ntime = "name"\n'
            "name_pattern = 'orders-(?P<time>[0-9]{8})'\nname_format = \"%Y%m%d\"\n"
            'schema = "id BIGINT, note STRING"\noptions = { header = "true" }'
        )
        file = job_file(tmp_path / "orders.toml", source, 'path = "landed"\nmode = "replace"')
        result = ingest(file)
        assert (result.errors, result.rows) == ((), count)
        assert landed(tmp_path / "landed", "SELECT id, note FROM t ORDER BY id") == [(n, f"n{n}") for n in range(count)]
        (drops / "orders-20200102-late.csv").write_text("id,note\n-1,late\n")
        assert ingest(file).planned == 0, "what was read is not listed again"


class TestStreams:
    def test_a_stream_gets_the_rows_and_the_time_before_which_nothing_is_missing(
        self, ingest: Any, tmp_path: Path
    ) -> None:
        db = tmp_path / "shop.db"
        fill_sqlite(db, orders(40))
        fill_sqlite(db, [(100, "north", 1.0, "wrong", "2020-01-03 99:00:00")])
        file = job_file(tmp_path / "orders.toml", SQLITE, 'stream = "shop/orders"\nmode = "append"')
        result = ingest(file)
        assert (result.succeeded, result.failed) == (3, 1), result.errors
        with fm.connect(tmp_path / "home") as home:
            assert home.stream("shop/orders").marks()[-1].lower == START + 2 * DAY
        with sqlite3.connect(db) as changed:
            changed.execute("DELETE FROM orders WHERE id = 100")
        assert ingest(file).is_whole
        with fm.connect(tmp_path / "home") as home:
            assert home.stream("shop/orders").marks()[-1].lower == START + 4 * DAY
            assert sum(home.stream("shop/orders").tail().values()) == 40


def test_the_commit_says_which_cell_it_is(ingest: Any, tmp_path: Path) -> None:
    fill_sqlite(tmp_path / "shop.db", orders(8))
    ingest(job_file(tmp_path / "orders.toml", SQLITE, 'path = "landed"\nmode = "replace"', days=1))
    said = DeltaTable(str(tmp_path / "landed")).history(1)[0]
    assert json.loads(said["floodmark.cell"]) == {"unit": "{}", "lo": START, "hi": START + DAY}
    assert (said["floodmark.job"], said["floodmark.run"]) == ("orders", "1")
    assert datetime.fromtimestamp(said["timestamp"] / 1000, UTC) > datetime(2026, 1, 1, tzinfo=UTC)
