"""Claims about secondary inputs: units from real files and real databases."""

import json
import sqlite3
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.errors import (
    DuplicateUnit,
    FloodmarkError,
    InvalidOption,
    JobInvalid,
    MissingPackage,
    SecondaryInputFailed,
    SecretMissing,
    UnitsInvalid,
)
from floodmark.ingest import Bound, Job, TimeWatermark, UnitWatermark, load_job
from floodmark.ingest import secondary_input as unit_rows
from floodmark.ingest.database import open_engine
from floodmark.ingest.job.options import Secret
from floodmark.ingest.job.unit import SecondaryInput
from floodmark.ingest.secondary_input import read_units, with_units

ROWS: list[dict[str, Any]] = [
    {"id": "007", "status": "OK", "region": "eu"},
    {"id": "12", "status": "Success", "region": None},
    {"id": "3", "status": None, "region": "us"},
    {"id": "4", "status": "NOT OK", "region": "us"},
    {"id": "5", "status": "OKAY", "region": "eu"},
]


def write_csv(path: Path) -> None:
    lines = ["id,status,region", *(",".join(value or "" for value in row.values()) for row in ROWS)]
    path.write_text("\n".join(lines) + "\n")


def write_json_lines(path: Path) -> None:
    path.write_text("\n".join(json.dumps(row) for row in ROWS) + "\n\n")


def write_json_list(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1))


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path)


def write_avro(path: Path) -> None:
    text = ["null", "string"]
    schema = {"type": "record", "name": "row", "fields": [{"name": name, "type": text} for name in ROWS[0]]}
    with path.open("wb") as file:
        fastavro.writer(file, schema, ROWS)


FILES = {
    "ids.csv": write_csv,
    "ids.jsonl": write_json_lines,
    "ids.ndjson": write_json_lines,
    "ids.json": write_json_list,
    "ids.parquet": write_parquet,
    "ids.avro": write_avro,
}


@pytest.mark.parametrize("name", FILES)
def test_each_kind_of_file_gives_the_same_units(name: str, tmp_path: Path) -> None:
    FILES[name](tmp_path / name)
    secondary = SecondaryInput(("region", "id"), str(tmp_path / name), filters={"status": "OK|Success"})
    assert [unit.key for unit in read_units(secondary)] == [
        '{"id":"007","region":"eu"}',
        '{"id":"12","region":null}',
    ]
    everything = SecondaryInput(("id",), str(tmp_path / name))
    assert [unit.fields["id"] for unit in read_units(everything)] == ["007", "12", "3", "4", "5"]


def test_the_format_can_be_said_where_the_name_does_not_tell(tmp_path: Path) -> None:
    write_csv(tmp_path / "ids.txt")
    with pytest.raises(SecondaryInputFailed, match="is unknown"):
        read_units(SecondaryInput(("id",), str(tmp_path / "ids.txt")))
    assert len(read_units(SecondaryInput(("id",), str(tmp_path / "ids.txt"), "csv"))) == 5


def test_a_folder_gives_the_units_of_all_its_files_but_not_of_bookkeeping(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "a.csv").write_text("id\n2\n")
    (tmp_path / "b.jsonl").write_text('{"id": "1"}\n')
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / ".b.jsonl.crc").write_bytes(b"\xff")
    assert [unit.fields["id"] for unit in read_units(SecondaryInput(("id",), str(tmp_path)))] == ["1", "2"]


FILTERS: dict[str, tuple[Mapping[str, str], list[str]]] = {
    "a filter fits the whole value": ({"status": "OK"}, ["007"]),
    "all filters must fit": ({"status": ".*", "region": "us"}, ["4"]),
    "NULL fits none": ({"status": ".*"}, ["007", "12", "4", "5"]),
    "a filter of the field itself": ({"id": "(3|4|5)"}, ["3", "4", "5"]),
}


@pytest.mark.parametrize(("filters", "ids"), FILTERS.values(), ids=FILTERS)
def test_filters_choose_rows(filters: Mapping[str, str], ids: list[str], tmp_path: Path) -> None:
    write_json_lines(tmp_path / "ids.jsonl")
    found = read_units(SecondaryInput(("id",), str(tmp_path / "ids.jsonl"), filters=filters))
    assert [unit.fields["id"] for unit in found] == ids


def test_numbers_truths_and_times_are_filtered_as_text(tmp_path: Path) -> None:
    rows = [{"id": 1, "on": True, "day": date(2020, 1, 1)}, {"id": 2, "on": False, "day": date(2020, 1, 2)}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    filters = {"id": "[0-9]", "on": "true", "day": "2020-.*"}
    found = read_units(SecondaryInput(("id", "day"), str(tmp_path / "a.parquet"), filters=filters))
    assert [unit.key for unit in found] == ['{"day":"2020-01-01","id":1}']


def test_values_that_json_lacks_become_text(tmp_path: Path) -> None:
    rows = [{"n": Decimal("1.50"), "at": datetime(2020, 1, 1, 12, tzinfo=UTC)}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (unit,) = read_units(SecondaryInput(("n", "at"), str(tmp_path / "a.parquet")))
    assert dict(unit.fields) == {"n": "1.50", "at": "2020-01-01T12:00:00+00:00"}


# --- what is refused -------------------------------------------------------------------------------------------------

BROKEN: dict[str, tuple[str, str, type[FloodmarkError], str]] = {
    "a column that is not there": ("a.csv", "idd,x\n1,2\n", SecondaryInputFailed, "Did you mean 'idd'"),
    "an empty CSV": ("a.csv", "", SecondaryInputFailed, "Its columns: none"),
    "too few values": ("a.csv", "id,x\n1\n", SecondaryInputFailed, "line 2"),
    "too many values": ("a.csv", "id,x\n1,2\n1,2,3\n", SecondaryInputFailed, "line 3"),
    "a quote that is open": ("a.csv", 'id,x\n"1,2\n', SecondaryInputFailed, "cannot be read"),
    "no JSON": ("a.jsonl", '{"id": 1}\n{"id": \n', SecondaryInputFailed, "line 2"),
    "no object": ("a.jsonl", '{"id": 1}\n7\n', SecondaryInputFailed, "line 2"),
    "no list": ("a.json", '[{"id": 1},', SecondaryInputFailed, "Not a JSON object"),
    "no Parquet": ("a.parquet", "PAR1", SecondaryInputFailed, "cannot be read"),
    "no Avro": ("a.avro", "Obj", SecondaryInputFailed, "cannot be read"),
    "a field that is a list": ("a.jsonl", '{"id": [1]}\n', UnitsInvalid, "type list"),
    "a number beyond all": ("a.jsonl", '{"id": NaN}\n', JobInvalid, "nan"),
    "no rows": ("a.csv", "id\n", SecondaryInputFailed, "has no units"),
    "the same unit twice": ("a.csv", "id\n1\n1\n", DuplicateUnit, "distinct = true"),
}


@pytest.mark.parametrize(("name", "text", "error", "said"), BROKEN.values(), ids=BROKEN)
def test_what_gives_no_units_is_refused(
    name: str, text: str, error: type[FloodmarkError], said: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(error) as caught:
        read_units(SecondaryInput(("id",), str(tmp_path / name)))
    assert said in str(caught.value)


def test_a_file_or_folder_that_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecondaryInputFailed, match="does not exist"):
        read_units(SecondaryInput(("id",), str(tmp_path / "nowhere.csv")))
    with pytest.raises(SecondaryInputFailed, match="an empty folder"):
        read_units(SecondaryInput(("id",), str(tmp_path)))


def test_rows_that_give_the_same_unit_are_one_by_choice(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n2\n1\n2\n")
    found = read_units(SecondaryInput(("id",), str(tmp_path / "a.csv"), distinct=True))
    assert [unit.fields["id"] for unit in found] == ["1", "2"]


def test_no_units_at_all_may_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n")
    assert read_units(SecondaryInput(("id",), str(tmp_path / "a.csv"), may_be_empty=True)) == ()


def test_the_number_of_units_is_bounded_while_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(6)))
    assert len(read_units(SecondaryInput(("id",), str(tmp_path / "a.csv"), most=6))) == 6
    with pytest.raises(UnitsInvalid, match="more than 5 units"):
        read_units(SecondaryInput(("id",), str(tmp_path / "a.csv"), most=5))


def test_a_delta_table_without_its_package_is_refused_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(unit_rows, "import_module", without)
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(MissingPackage, match=r"pip install \"floodmark\[delta\]"):
        read_units(SecondaryInput(("id",), str(tmp_path)))


def test_a_delta_table_gives_units_and_what_was_deleted_from_it_does_not(tmp_path: Path) -> None:
    place = str(tmp_path / "landed")
    deltalake.write_deltalake(place, pa.table({"id": [3, 1, 2], "region": ["a", "b", "a"]}), partition_by=["region"])
    deltalake.write_deltalake(place, pa.table({"id": [4], "region": ["a"]}), mode="append")
    deltalake.DeltaTable(place).delete("id = 1")
    found = read_units(SecondaryInput(("id",), place, filters={"region": "a|b"}))
    assert [unit.key for unit in found] == ['{"id":2}', '{"id":3}', '{"id":4}']
    with pytest.raises(SecondaryInputFailed, match="Did you mean 'region'"):
        read_units(SecondaryInput(("regoin",), place))


DELTA_BAD = {
    "a job that has never landed": ("nowhere", "is not a Delta table"),
    "a folder that is none": (".", "is not a Delta table"),
    "a log without a table": ("broken", "cannot be read"),
}


@pytest.mark.parametrize(("name", "said"), DELTA_BAD.values(), ids=DELTA_BAD)
def test_what_is_no_delta_table_is_refused(name: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "broken" / "_delta_log").mkdir(parents=True)
    with pytest.raises(SecondaryInputFailed, match=said):
        read_units(SecondaryInput(("id",), str(tmp_path / name), "delta"))


# --- databases -------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> str:
    with sqlite3.connect(tmp_path / "crm.db") as connection:
        connection.execute('CREATE TABLE "ids of all" (id TEXT, status TEXT, region TEXT)')
        rows = [(row["id"], row["status"], row["region"]) for row in ROWS]
        connection.executemany('INSERT INTO "ids of all" VALUES (?, ?, ?)', rows)
    connection.close()
    return f"sqlite:///{tmp_path / 'crm.db'}"


QUERIES: dict[str, tuple[dict[str, str], list[str]]] = {
    "a table": ({"table": "ids of all"}, ["007", "12"]),
    "a table of a schema": ({"table": "main.ids of all"}, ["007", "12"]),
    "a query": ({"query": 'SELECT id, status FROM "ids of all" WHERE region IS NULL'}, ["12"]),
    "colons and percents in a query": (
        {"query": "SELECT id || ':x%' AS id, status FROM \"ids of all\" WHERE region = 'eu'"},
        ["007:x%"],
    ),
}


@pytest.mark.parametrize(("asked", "ids"), QUERIES.values(), ids=QUERIES)
def test_units_come_from_a_table_or_a_query(asked: dict[str, Any], ids: list[str], database: str) -> None:
    found = read_units(SecondaryInput(("id",), url=database, filters={"status": "OK|Success"}, **asked))
    assert [unit.fields["id"] for unit in found] == ids


def test_the_whole_url_may_be_a_secret(database: str) -> None:
    secondary = SecondaryInput(("id",), url=Secret("env", "CRM"), table="ids of all")
    assert len(read_units(secondary, {"CRM": database})) == 5
    with pytest.raises(SecretMissing):
        read_units(secondary, {})


DATABASE_BAD: dict[str, tuple[dict[str, str], type[FloodmarkError], str]] = {
    "no such table": ({"table": "nowhere"}, SecondaryInputFailed, "no such table"),
    "no such column": ({"query": "SELECT 1 AS idd"}, SecondaryInputFailed, "Did you mean 'idd'"),
    "no SQL": ({"query": "SELEKT 1"}, SecondaryInputFailed, "syntax error"),
}


@pytest.mark.parametrize(("asked", "error", "said"), DATABASE_BAD.values(), ids=DATABASE_BAD)
def test_what_a_database_refuses_is_told(
    asked: dict[str, Any], error: type[FloodmarkError], said: str, database: str
) -> None:
    with pytest.raises(error) as caught:
        read_units(SecondaryInput(("id",), url=database, **asked))
    assert said in str(caught.value)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SecondaryInputFailed, match="There is no SQLite database"):
        read_units(SecondaryInput(("id",), url=f"sqlite:///{tmp_path / 'no.db'}", table="x"))
    assert list(tmp_path.iterdir()) == []


OPENED_BY_NOBODY = {"no URL": ("nonsense", InvalidOption), "no driver": ("mysql+nodriver://db/x", MissingPackage)}


@pytest.mark.parametrize(("url", "error"), OPENED_BY_NOBODY.values(), ids=OPENED_BY_NOBODY)
def test_a_url_that_nobody_can_open_is_refused(url: str, error: type[FloodmarkError]) -> None:
    with pytest.raises(error):
        read_units(SecondaryInput(("id",), url=url, table="x"))


def test_a_database_that_does_not_answer_is_told_without_its_password() -> None:
    url = "postgresql://ann:hunter2hunter2@127.0.0.1:1/crm?connect_timeout=2"
    with pytest.raises(SecondaryInputFailed, match=r"postgresql://127\.0\.0\.1:1/crm") as caught:
        read_units(SecondaryInput(("id",), url=Secret("env", "CRM"), table="x"), {"CRM": url})
    assert "hunter2" not in f"{caught.value} {caught.value!r} {caught.value.fields}"


def test_a_password_is_given_to_the_driver_and_postgresql_is_spoken_to_by_psycopg() -> None:
    url = open_engine("postgresql://ann@db/crm", "a@b/c").url
    assert (url.drivername, url.username, url.password, url.host) == ("postgresql+psycopg", "ann", "a@b/c", "db")


# --- jobs ------------------------------------------------------------------------------------------------------------


def test_the_table_that_a_preceding_job_has_landed_gives_the_units(tmp_path: Path) -> None:
    head = '[job]\nname = "{}"\nzone = "UTC"\n{}[time]\nfrom = "P7D"\nto = "-"\n'
    landing = '[target]\nmode = "append"\npath = "landed/ids"\n'
    (tmp_path / "ids.toml").write_text(head.format("ids", "") + landing)
    after = 'after = "ids.toml"\n'
    units = '[units.input]\npreceding = true\nfields = ["id"]\nfilters = { ok = "true" }\n'
    (tmp_path / "orders.toml").write_text(head.format("orders", after) + units)
    job = load_job(tmp_path / "orders.toml").job
    with pytest.raises(SecondaryInputFailed, match="run the job that writes it first"):
        with_units(job)
    deltalake.write_deltalake(tmp_path / "landed" / "ids", pa.table({"id": ["b", "a"], "ok": [True, False]}))
    assert [unit.key for unit in with_units(job).listed_units] == ['{"id":"b"}']


def test_a_job_gets_its_units_when_it_is_planned(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    times = TimeWatermark("t", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC"))
    job = Job("a", "UTC", times, UnitWatermark("x", secondary=SecondaryInput(("id",), str(tmp_path / "a.csv"))))
    with pytest.raises(JobInvalid, match="not read yet"):
        job.listed_units  # noqa: B018
    assert [unit.key for unit in with_units(job).listed_units] == ['{"id":"1"}']
    assert with_units(with_units(job)) == with_units(job)
