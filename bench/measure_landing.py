"""The speed of ingestion into Delta Lake, next to dlt and to Spark's own JDBC reader, and what small cells cost."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import floodmark as fm
from figures import Figure
from floodmark.ingest import PlannedRange, SqlSource, Unit, load_job
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.extract.sql.split import sql_splits
from floodmark.testing import PostgresServer
from floodmark.testing.servers import free_ports
from foreign_jars import foreign_jars

ROWS = 10_000_000
DAYS = 10
CELLS = 42 * 24
SPLITS = 4
DAY = 86_400_000_000
START = 18_262 * DAY
_COLUMNS = "id {whole}, customer {small}, amount {real}, note text, updated_at timestamp"
_DLT = ("dlt[deltalake,parquet]==1.31.0", "connectorx==0.4.6", "sqlalchemy>=2,<3", "psycopg[binary]>=3.2")


def measure_landing() -> Iterator[Figure]:
    """Yield rows a second from two databases, by three ways, and the time that a small cell takes."""
    conf = {"spark.driver.memory": "3g", "spark.jars": ",".join(foreign_jars())}
    spark = fm.session("floodmark-bench-landing", conf=conf)
    try:
        with tempfile.TemporaryDirectory() as place, PostgresServer(port=free_ports(1)[0]) as server:
            root = Path(place)
            python = _environment(root)
            name = urlsplit(server.new_database()).path
            url = f"postgresql://postgres@127.0.0.1:{server.port}{name}"
            _fill_postgres(url)
            _fill_sqlite(root / "shop.db")
            yield from _compared(spark, root, python, "PostgreSQL", url)
            yield from _compared(spark, root, python, "SQLite", f"sqlite:///{root / 'shop.db'}")
            yield from _small_cells(spark, root)
    finally:
        spark.stop()


def _compared(spark: SparkSession, root: Path, python: str, name: str, url: str) -> Iterator[Figure]:
    place = root / name
    place.mkdir()
    _ours(spark, place / "warm", url, days=1)
    speed = ROWS / min(_ours(spark, place / f"ours-{n}", url) for n in range(2))
    yield Figure(f"10 M rows of {name} into Delta, ingested", speed / 1e3, "k rows/s")
    backends = ("connectorx", "pyarrow")
    times = {one: _dlt(python, place, url, one) for one in backends}
    best = min(times, key=lambda one: times[one])
    yield Figure(f"the same by dlt ({best}, its fastest)", ROWS / times[best] / 1e3, "k rows/s")
    yield Figure(f"{name}: ingested to dlt", speed * times[best] / ROWS, "x", at_least=3)
    if name == "PostgreSQL":
        theirs = ROWS / min(_jdbc(spark, place / f"jdbc-{n}", url) for n in range(2))
        yield Figure(f"the same by Spark's JDBC reader, {name} into Parquet", theirs / 1e3, "k rows/s")
        yield Figure(f"{name}: ingested to Spark's JDBC reader", speed / theirs, "x", at_least=1)


def _ours(spark: SparkSession, place: Path, url: str, days: int = DAYS) -> float:
    place.mkdir()
    (place / "url").write_text(url)
    job = _job(place, "grid = 'none'", f"splits = {SPLITS}", days=days)
    begun = time.perf_counter()
    result = fm.ingest_job(job, home=place / "home", spark=spark)
    took = time.perf_counter() - begun
    assert result.is_whole, result.errors
    assert DeltaTable(str(place / "landed")).count() == ROWS * days // DAYS
    return took


def _small_cells(spark: SparkSession, root: Path) -> Iterator[Figure]:
    """Yield what a cell of a hundred rows takes above the extraction itself."""
    db = sqlite3.connect(root / "small.db")
    db.execute(f"CREATE TABLE orders ({_COLUMNS.format(whole='integer', small='integer', real='real')})")
    step = 3_600 / 100
    moments = ((n, n % 7, n / 3, "x" * 20, f"+{n * step:.3f} seconds") for n in range(CELLS * 100))
    db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, datetime('2020-01-01', ?))", moments)
    db.execute("CREATE INDEX by_time ON orders (updated_at)")
    db.commit()
    db.close()
    place = root / "small"
    place.mkdir()
    (place / "url").write_text(f"sqlite:///{root / 'small.db'}")
    job = _job(place, "grid = 'hourly'", "", days=CELLS // 24)
    begun = time.perf_counter()
    result = fm.ingest_job(job, home=place / "home", spark=spark)
    took = (time.perf_counter() - begun) / result.planned
    assert result.is_whole, result.errors
    source = load_job(job).job.source
    assert isinstance(source, SqlSource)
    bare = []
    for n in range(0, CELLS, 10):
        hour = Range(START + n * DAY // 24, START + (n + 1) * DAY // 24)
        begun = time.perf_counter()
        for part in sql_splits(source, "UTC", PlannedRange(Unit.of({}), hour, hour, "new", ("new",))):
            sum(batch.num_rows for batch in part.read())
        bare.append(time.perf_counter() - begun)
    above = (took - sum(bare) / len(bare)) * 1e3
    yield Figure(f"{result.planned} small cells into Delta: a cell above its extraction", above, "ms", at_most=100)


def _job(place: Path, grid: str, source: str, *, days: int) -> Path:
    path = place / "orders.toml"
    path.write_text(
        f"""
[job]
name = "orders"
zone = "UTC"
[time]
from = 2020-01-01
to = {date(2020, 1, 1) + timedelta(days)}
{grid}
[source]
kind = "sql"
url = "file:url"
table = "orders"
watermark = "updated_at"
{source}
[target]
path = "landed"
mode = "replace"
"""
    )
    return path


def _dlt(python: str, place: Path, url: str, backend: str) -> float:
    script = str(Path(__file__).with_name("dlt_load.py"))
    done = subprocess.run(
        [python, script, url, str(place / "dlt"), backend],
        capture_output=True,
        text=True,
        timeout=900,
        env={"PATH": os.environ["PATH"], "HOME": str(place), "RUNTIME__DLTHUB_TELEMETRY": "false"},
        check=False,
    )
    if done.returncode:
        print(f"dlt by {backend} failed: {done.stderr.splitlines()[-1:]}", file=sys.stderr)
        return float("inf")
    return float(done.stdout.splitlines()[-1])


def _jdbc(spark: SparkSession, place: Path, url: str) -> float:
    known = {"user": "postgres", "fetchsize": "10000", "driver": "org.postgresql.Driver"}
    where = f"jdbc:{url.replace('postgres@', '')}"
    ends = [f"2020-01-{n:02}" for n in range(1, DAYS + 2)]
    predicates = [f"updated_at >= '{lo}' AND updated_at < '{hi}'" for lo, hi in pairwise(ends)]
    begun = time.perf_counter()
    spark.read.jdbc(where, "orders", predicates=predicates, properties=known).write.parquet(str(place))
    return time.perf_counter() - begun


def _fill_postgres(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE TABLE orders ({_COLUMNS.format(whole='bigint', small='int', real='float8')})")
        db.execute(
            "INSERT INTO orders SELECT n, n % 10000, n / 3.0, 'note ' || lpad(n::text, 15, '0'), "
            f"timestamp '2020-01-01' + n * interval '{DAYS * 86_400 / ROWS} seconds' "
            f"FROM generate_series(0, {ROWS - 1}) n"
        )
        db.execute("CREATE INDEX ON orders (updated_at)")
        db.execute("VACUUM ANALYZE orders")


def _fill_sqlite(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute(f"CREATE TABLE orders ({_COLUMNS.format(whole='integer', small='integer', real='real')})")
    db.execute(
        "INSERT INTO orders WITH RECURSIVE n(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
        "SELECT n, n % 10000, n / 3.0, printf('note %015d', n), "
        "strftime('%Y-%m-%d %H:%M:%f', '2020-01-01', (n * ?) || ' seconds') FROM n",
        (ROWS - 1, DAYS * 86_400 / ROWS),
    )
    db.execute("CREATE INDEX by_time ON orders (updated_at)")
    db.commit()
    db.close()


def _environment(root: Path) -> str:
    """Return a Python that has dlt, in an environment of its own: it asks for other versions than Floodmark."""
    python = root / "dlt-env" / "bin" / "python"
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(root / "dlt-env")], check=True, timeout=120)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *_DLT], check=True, timeout=600)
    return str(python)
