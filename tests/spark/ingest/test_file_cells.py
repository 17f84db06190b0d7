"""The files of a cell become rows: each format, odd names, schemas, and times that rows have themselves."""

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyarrow import orc
from pyarrow import parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from floodmark.errors import (
    FloodmarkError,
    InvalidOption,
    MissingPackage,
    SourceChanged,
    SourceFailed,
    SourceValueUnfit,
    UnknownColumn,
    UnsupportedFrame,
    WatermarkMissing,
)
from floodmark.ingest import FilesSource, PlannedRange, Range, Unit
from floodmark.ingest.calendar.clock import micros_to_wall, wall_to_micros, zone_of
from floodmark.ingest.extract.files import ListedFile, list_files
from floodmark.spark.ingest.files import read_files, reading_error

ALL = Unit.of({})
SPARK = (PySparkException, Py4JJavaError)
HEADER = {"header": "true"}
BERLIN = "Europe/Berlin"
ORDERS = pa.table({"id": pa.array([1, 2], pa.int64()), "name": ["a", "b"]})


@pytest.fixture
def drops(tmp_path: Path) -> Path:
    (tmp_path / "drops").mkdir()
    return tmp_path / "drops"


def at(text: str, fold: int = 0) -> int:
    return wall_to_micros(datetime.fromisoformat(text).replace(fold=fold), zone_of(BERLIN))


def row_of(lo: int = 0, hi: int = 1) -> PlannedRange:
    return PlannedRange(ALL, Range(lo, hi), Range(lo, hi), "new", ("new",))


def listed(source: FilesSource) -> tuple[ListedFile, ...]:
    return list_files(source, BERLIN, ALL)


def source_of(drops: Path, kind: str = "csv", **more: Any) -> FilesSource:
    return FilesSource(paths=(str(drops),), format=kind, **more)


def frame_of(spark: SparkSession, source: FilesSource, row: PlannedRange | None = None) -> DataFrame:
    frame = read_files(spark, source, listed(source), row or row_of(), BERLIN)
    assert frame is not None
    return frame


def rows_of(frame: DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.select(*columns).collect())


def refused(spark: SparkSession, source: FilesSource, row: PlannedRange | None = None) -> FloodmarkError:
    """Read what cannot be read, and return what is said of it: at once, or when the rows are asked for."""
    files = listed(source)
    try:
        frame = read_files(spark, source, files, row or row_of(), BERLIN)
    except FloodmarkError as error:
        return error
    assert frame is not None
    with pytest.raises(SPARK) as caught:
        frame.collect()
    return reading_error(caught.value, source, files)


def put_orders(drops: Path, kind: str) -> None:
    path = drops / f"1.{kind}"
    match kind:
        case "csv":
            path.write_text("id,name\n1,a\n2,b\n")
        case "json":
            path.write_text('{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n')
        case "parquet":
            pq.write_table(ORDERS, path)
        case "orc":
            orc.write_table(ORDERS, path)


@pytest.mark.parametrize("schema", ["id BIGINT, name STRING", None], ids=["given", "found"])
@pytest.mark.parametrize("kind", ["csv", "json", "parquet", "orc"])
def test_rows_of_each_format_come_with_their_file_and_its_time(
    spark: SparkSession, drops: Path, kind: str, schema: str | None
) -> None:
    put_orders(drops, kind)
    os.utime(drops / f"1.{kind}", ns=(0, 1_600_000_000_123_456_000))
    options = {**HEADER, "inferSchema": "true"} if kind == "csv" else {}
    frame = frame_of(spark, source_of(drops, kind, schema=schema, options=options))
    path = str(drops / f"1.{kind}")
    time = datetime(2020, 9, 13, 12, 26, 40, 123456, tzinfo=UTC).replace(tzinfo=None)
    assert rows_of(frame, "*") == [(1, "a", path, time), (2, "b", path, time)]
    assert frame.columns == ["id", "name", "_file", "_file_time"]
    assert frame.schema["_file_time"].dataType.simpleString() == "timestamp"


def test_text_and_bytes_have_the_columns_of_spark(spark: SparkSession, drops: Path) -> None:
    (drops / "a.txt").write_text("one\ntwo\n")
    assert rows_of(frame_of(spark, source_of(drops, "text")), "value") == [("one",), ("two",)]
    frame = frame_of(spark, source_of(drops, "binary"))
    assert frame.columns == ["path", "modificationTime", "length", "content", "_file", "_file_time"]
    assert rows_of(frame, "length", "content") == [(8, b"one\ntwo\n")]


def test_avro_is_refused_with_the_package_that_it_needs(spark: SparkSession, drops: Path) -> None:
    (drops / "a.avro").write_bytes(b"Obj\x01")
    error = refused(spark, source_of(drops, "avro"))
    assert isinstance(error, MissingPackage)
    assert "spark-avro" in error.remedy


ODD = (
    *("a b.csv", "a,b.csv", "a[1].csv", "a*.csv", "a?.csv", "a{x,y}.csv", "a%20b.csv", "a+b.csv", "ä€.csv", "a#b.csv"),
    *("a\\b.csv", "a\nb.csv", "a;b&c=d.csv", "a'\"`.csv", "2020-01-01T10:00.csv", "x,y [1]/a.csv", "12:30/a.csv"),
)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_names_mean_themselves_and_are_told_as_they_are(spark: SparkSession, drops: Path, kind: str) -> None:
    for number, name in enumerate(ODD):
        (drops / name).parent.mkdir(exist_ok=True)
        os.utime(drops)
        if kind == "csv":
            (drops / name).write_text(f"{number}\n")
        else:
            pq.write_table(pa.table({"id": pa.array([number], pa.int32())}), drops / name)
        os.utime(drops / name, (number, number))
    source = source_of(drops, kind, schema="id INT")
    files = listed(source)
    frame = read_files(spark, source, files, row_of(), BERLIN)
    assert frame is not None
    found = [(number, path, int(time.replace(tzinfo=UTC).timestamp())) for number, path, time in rows_of(frame, "*")]
    assert found == [(number, str(drops / name), number) for number, name in enumerate(ODD)]
    for chosen in (2, 3, 5):  # what would be patterns, alone
        one = read_files(spark, source, files[chosen : chosen + 1], row_of(), BERLIN)
        assert one is not None
        assert rows_of(one, "id", "_file") == [(chosen, str(drops / ODD[chosen]))]


def test_a_name_that_hadoop_cannot_have_is_refused(spark: SparkSession, drops: Path) -> None:
    (drops / "12:30[1].csv").write_text("1")
    error = refused(spark, source_of(drops))
    assert isinstance(error, SourceFailed)
    assert "Rename" in error.remedy


def test_only_the_files_that_are_given_are_read(spark: SparkSession, drops: Path) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        (drops / name).write_text(f"{name}\n")
    source = source_of(drops, schema="name STRING")
    files = listed(source)
    (drops / "d.csv").write_text("d.csv\n")
    frame = read_files(spark, source, [file for file in files if "b.csv" not in file.path], row_of(), BERLIN)
    assert frame is not None
    assert rows_of(frame, "name") == [("a.csv",), ("c.csv",)]


def test_directories_become_columns_if_the_one_above_is_named(spark: SparkSession, drops: Path) -> None:
    (drops / "day=2020-01-01").mkdir()
    (drops / "day=2020-01-01/a.csv").write_text("1\n")
    assert "day" not in frame_of(spark, source_of(drops, schema="id INT")).columns
    frame = frame_of(spark, source_of(drops, schema="id INT", options={"basePath": str(drops)}))
    assert rows_of(frame, "id", "day") == [(1, date(2020, 1, 1))]


EMPTY = {
    "a schema": ("csv", "id INT, at TIMESTAMP", ["id", "at", "_file", "_file_time"]),
    "no schema": ("csv", None, None),
    "a format that has always the same": ("text", None, ["value", "_file", "_file_time"]),
    "bytes": ("binary", None, ["path", "modificationTime", "length", "content", "_file", "_file_time"]),
}


@pytest.mark.parametrize(("kind", "schema", "columns"), EMPTY.values(), ids=EMPTY)
def test_a_cell_without_files_has_no_rows(
    spark: SparkSession, drops: Path, kind: str, schema: str | None, columns: list[str] | None
) -> None:
    frame = read_files(spark, source_of(drops, kind, schema=schema), (), row_of(), BERLIN)
    if columns is None:
        assert frame is None
        return
    assert frame is not None
    assert (frame.columns, frame.collect()) == (columns, [])
    assert [frame.schema[name].dataType.simpleString() for name in columns[-2:]] == ["string", "timestamp"]


def test_empty_files_are_no_rows_and_say_nothing_of_columns(spark: SparkSession, drops: Path) -> None:
    (drops / "a.csv").touch()
    source = source_of(drops, options=HEADER)
    assert read_files(spark, source, listed(source), row_of(), BERLIN) is None
    timed = source_of(drops, time="column", column="at", options=HEADER)
    assert read_files(spark, timed, listed(timed), row_of(), BERLIN) is None
    assert frame_of(spark, source_of(drops, schema="id INT", options=HEADER)).collect() == []
    (drops / "b.csv").write_text("id\n7\n")
    assert rows_of(frame_of(spark, source), "id") == [("7",)]


def test_with_a_schema_no_file_is_opened_to_find_one(spark: SparkSession, drops: Path) -> None:
    (drops / "a.json").write_text("nonsense\n")
    source = source_of(drops, "json", schema="id INT")
    frame = frame_of(spark, source)  # what is wrong in it is met only when it is read
    with pytest.raises(SPARK):
        frame.collect()
    assert isinstance(refused(spark, source_of(drops, "json")), SourceFailed)


def test_columns_are_those_of_all_files_of_the_cell(spark: SparkSession, drops: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), drops / "a")
    pq.write_table(pa.table({"id": [2], "more": ["x"]}), drops / "b")
    assert rows_of(frame_of(spark, source_of(drops, "parquet")), "id", "more") == [(1, None), (2, "x")]
    alone = frame_of(spark, source_of(drops, "parquet", options={"mergeschema": "false"}))
    assert len(alone.columns) in (3, 4)  # Spark takes one of the two


WRONG: dict[str, tuple[str, str, dict[str, Any]]] = {
    "CSV of another type": ("id\nx\n", "csv", {"schema": "id INT", "options": HEADER}),
    "CSV with other columns": ("no\n1\n", "csv", {"schema": "id INT", "options": HEADER}),
    "JSON that is none": ("{", "json", {"schema": "id INT"}),
    "JSON without a schema": ("{", "json", {}),
    "JSON of another type": ('{"id": "x"}', "json", {"schema": "id INT"}),
    "Parquet that is none": ("x", "parquet", {}),
    "Parquet that is none, with a schema": ("x", "parquet", {"schema": "id INT"}),
    "ORC that is none": ("x", "orc", {"schema": "id INT"}),
}


@pytest.mark.parametrize(("text", "kind", "more"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_parsed_fails_the_cell(
    spark: SparkSession, drops: Path, text: str, kind: str, more: dict[str, Any]
) -> None:
    (drops / "a").write_text(text)
    error = refused(spark, source_of(drops, kind, **more))
    assert isinstance(error, SourceFailed)
    assert "\n" not in str(error)


def test_the_options_may_say_that_it_is_taken(spark: SparkSession, drops: Path) -> None:
    (drops / "a").write_text("x\n1\n")
    permissive = source_of(drops, schema="id INT", options={"MODE": "PERMISSIVE"})
    assert [row.id for row in frame_of(spark, permissive).collect()] == [None, 1]
    dropping = source_of(drops, schema="id INT", options={"mode": "DROPMALFORMED"})
    assert rows_of(frame_of(spark, dropping), "id") == [(1,)]
    header = source_of(drops, schema="other INT", options={**HEADER, "enforceSchema": "true"})
    assert rows_of(frame_of(spark, header), "other") == [(1,)]


def test_files_with_other_headers_than_the_first_fail_the_cell(spark: SparkSession, drops: Path) -> None:
    (drops / "a.csv").write_text("id,name\n1,x\n")
    (drops / "b.csv").write_text("name,id\ny,2\n")
    assert isinstance(refused(spark, source_of(drops, options=HEADER)), SourceFailed)


REFUSED: dict[str, tuple[dict[str, Any], type[FloodmarkError], str]] = {
    "a schema that is none": ({"schema": "id NONSENSE"}, InvalidOption, "NONSENSE"),
    "a schema without columns": ({"schema": "INT"}, InvalidOption, "it is int"),
    "a column that we add": ({"schema": "_FILE STRING"}, UnsupportedFrame, "'_FILE'"),
    "a time that we add": ({"schema": "_file_time STRING"}, UnsupportedFrame, "'_file_time'"),
    "a column that is not there": (
        {"schema": "at DATE", "time": "column", "column": "att"},
        UnknownColumn,
        "'att'",
    ),
    "a column that is no time": (
        {"schema": "at INT", "time": "column", "column": "at"},
        UnsupportedFrame,
        "of type int",
    ),
    "an option that leaves files out": ({"options": {"pathGlobFilter": "x"}}, InvalidOption, "pathGlobFilter"),
}


@pytest.mark.parametrize(("more", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_a_source_that_makes_no_sense_is_refused(
    spark: SparkSession, drops: Path, more: dict[str, Any], kind: type[FloodmarkError], said: str
) -> None:
    (drops / "a.csv").write_text("1\n")
    files = listed(source_of(drops))
    with pytest.raises(kind) as caught:
        read_files(spark, source_of(drops, **more), files, row_of(), BERLIN)
    assert said in caught.value.fact


def test_a_file_that_is_gone_or_changed_before_it_is_read_fails_the_cell(spark: SparkSession, drops: Path) -> None:
    (drops / "a.csv").write_text("1\n")
    source = source_of(drops, schema="id INT")
    files = listed(source)
    (drops / "a.csv").write_text("12\n")
    with pytest.raises(SourceChanged, match="was changed after it was listed"):
        read_files(spark, source, files, row_of(), BERLIN)
    (drops / "a.csv").unlink()
    with pytest.raises(SourceChanged, match="was removed after it was listed"):
        read_files(spark, source, files, row_of(), BERLIN)


def test_a_file_that_goes_while_it_is_read_fails_the_cell(spark: SparkSession, drops: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (drops / name).write_text("1\n")
    source = source_of(drops, schema="id INT")
    files = listed(source)
    frame = read_files(spark, source, files, row_of(), BERLIN)
    assert frame is not None
    (drops / "a.csv").unlink()
    with pytest.raises(SPARK) as caught:
        frame.collect()
    assert isinstance(reading_error(caught.value, source, files), SourceChanged)


# Hours of the day when clocks go back, and of the one when they go forward.
FALL, SPRING = "2020-10-25", "2020-03-29"
HOURS = ("00:30", "01:30", "02:00", "02:30", "02:59:59.999999", "03:00", "03:30")
NAMES = [f"h{hour}" for hour in HOURS]  # what would itself be taken for a time
CELLS: dict[str, tuple[str, int, int, Sequence[str]]] = {
    "the hour before": (FALL, at(f"{FALL}T01:00"), at(f"{FALL}T02:00"), ["01:30"]),
    "the hour that comes first": (FALL, at(f"{FALL}T02:00"), at(f"{FALL}T02:00", fold=1), []),
    "the same hour again": (FALL, at(f"{FALL}T02:00", fold=1), at(f"{FALL}T03:00"), HOURS[2:5]),
    "the hour after": (FALL, at(f"{FALL}T03:00"), at(f"{FALL}T04:00"), ["03:00", "03:30"]),
    "all of the day": (FALL, at(FALL), at("2020-10-26"), HOURS),
    "before the skip": (SPRING, at(f"{SPRING}T01:00"), at(f"{SPRING}T03:00"), ["01:30"]),
    "after the skip": (SPRING, at(f"{SPRING}T03:00"), at(f"{SPRING}T04:00"), HOURS[2:]),
}


def put_times(drops: Path, day: str, kind: str) -> FilesSource:
    texts = [f"{day}T{hour}" for hour in HOURS]
    if kind == "timestamp_ntz":
        walls = [datetime.fromisoformat(text) for text in texts]
        pq.write_table(pa.table({"at": pa.array(walls, pa.timestamp("us")), "hour": NAMES}), drops / "a")
        return source_of(drops, "parquet", time="column", column="at")
    if kind.startswith("json"):
        lines = (f'{{"at": "{text}", "hour": "{hour}"}}' for text, hour in zip(texts, NAMES, strict=True))
        (drops / "a").write_text("\n".join(lines))
        return source_of(drops, "json", time="column", column="at", schema=f"at {kind[5:]}, hour STRING")
    pairs = zip(texts, NAMES, strict=True)
    written = [(text.replace("T", " ") if kind == "string" else text, hour) for text, hour in pairs]
    (drops / "a").write_text("at,hour\n" + "".join(f"{text},{hour}\n" for text, hour in written))
    schema = None if kind == "found" else f"at {kind}, hour STRING"
    options = {**HEADER, "inferSchema": "true"} if kind == "found" else HEADER
    return source_of(drops, time="column", column="at", schema=schema, options=options)


@pytest.mark.parametrize("kind", ["timestamp_ntz", "string", "timestamp", "found", "json timestamp", "json string"])
def test_an_hour_that_comes_twice_is_of_the_later_cell(spark: SparkSession, drops: Path, kind: str) -> None:
    for day in (FALL, SPRING):
        source = put_times(drops, day, kind)
        for name, (of, lo, hi, expected) in CELLS.items():
            if of == day:
                frame = frame_of(spark, source, row_of(lo, hi))
                assert [hour[1:] for (hour,) in rows_of(frame, "hour")] == list(expected), name


def test_a_timestamp_that_was_a_wall_time_is_landed_as_the_moment_it_counts_as(
    spark: SparkSession, drops: Path
) -> None:
    lo, hi = at(FALL), at("2020-10-26")
    frame = frame_of(spark, put_times(drops, FALL, "timestamp"), row_of(lo, hi))
    assert frame.schema["at"].dataType.simpleString() == "timestamp"
    assert frame.columns == ["at", "hour", "_file"]
    micros = {
        hour[1:]: moment for moment, hour in rows_of(frame.selectExpr("unix_micros(at) AS m", "hour"), "m", "hour")
    }
    assert micros == {hour: at(f"{FALL}T{hour}", fold=1) for hour in HOURS}


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kolkata", BERLIN])
def test_the_zone_of_the_session_does_not_count(spark: SparkSession, drops: Path, zone: str) -> None:
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        for kind in ("timestamp_ntz", "string", "timestamp"):
            source = put_times(drops, FALL, kind)
            _, lo, hi, expected = CELLS["the same hour again"]
            assert [hour[1:] for (hour,) in rows_of(frame_of(spark, source, row_of(lo, hi)), "hour")] == list(expected)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def test_moments_are_of_their_own_cell(spark: SparkSession, drops: Path) -> None:
    first, second = at(f"{FALL}T02:30"), at(f"{FALL}T02:30", fold=1)
    both = pa.array([first, second], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": both, "id": [1, 2]}), drops / "a")
    source = source_of(drops, "parquet", time="column", column="at")
    cells = [row_of(first, first + 1), row_of(first + 1, second), row_of(second, second + 1)]
    assert [rows_of(frame_of(spark, source, cell), "id") for cell in cells] == [[(1,)], [], [(2,)]]


TEXTS = {
    "Z": "2020-10-25T00:30:00Z",
    "an offset": "2020-10-25T02:30:00+02:00",
    "an offset of hours": "2020-10-25T02:30+02",
    "an offset without a colon": "2020-10-25 06:00:00.000+0530",
    "a blank before it": "2020-10-24 23:30:00 -01:00",
    "blanks around it": "  2020-10-25T00:30:00Z ",
    "nanoseconds": "2020-10-25T00:30:00.000000999Z",
}


@pytest.mark.parametrize("kind", ["STRING", "TIMESTAMP"])
def test_an_offset_in_a_text_counts(spark: SparkSession, drops: Path, kind: str) -> None:
    (drops / "a").write_text("".join(f'"{text}",{name}\n' for name, text in TEXTS.items()))
    source = source_of(drops, time="column", column="at", schema=f"at {kind}, name STRING")
    moment = at(f"{FALL}T02:30")
    assert [name for (name,) in rows_of(frame_of(spark, source, row_of(moment, moment + 1)), "name")] == sorted(TEXTS)
    assert rows_of(frame_of(spark, source, row_of(moment + 1, moment + 2)), "name") == []


def test_a_day_is_its_midnight_in_the_zone(spark: SparkSession, drops: Path) -> None:
    (drops / "a").write_text("2020-10-24\n2020-10-25\n2020-10-26\n")
    for kind in ("DATE", "STRING"):
        source = source_of(drops, time="column", column="at", schema=f"at {kind}")
        frame = frame_of(spark, source, row_of(at(FALL), at("2020-10-26")))
        assert [str(row.at) for row in frame.collect()] == [FALL]
        tokyo = source_of(drops, time="column", column="at", schema=f"at {kind}", zone="Asia/Tokyo")
        assert [str(row.at) for row in frame_of(spark, tokyo, row_of(at(FALL), at("2020-10-26"))).collect()] == [
            "2020-10-26"
        ]


FORMATS = {
    "walls": ("dd.MM.yyyy HH:mm", "25.10.2020 02:30", at(f"{FALL}T02:30", fold=1)),
    "offsets": ("dd.MM.yyyy HH:mm XXX", "25.10.2020 02:30 +02:00", at(f"{FALL}T02:30")),
    "a letter that is quoted": ("yyyy-MM-dd'Z'HH:mm", "2020-10-25Z02:30", at(f"{FALL}T02:30", fold=1)),
}


@pytest.mark.parametrize(("written", "text", "moment"), FORMATS.values(), ids=FORMATS)
def test_timestamps_may_be_written_otherwise(
    spark: SparkSession, drops: Path, written: str, text: str, moment: int
) -> None:
    (drops / "a").write_text(f"{text}\n")
    options = {"timestampFormat": written}
    source = source_of(drops, time="column", column="at", schema="at TIMESTAMP", options=options)
    (found,) = frame_of(spark, source, row_of(moment, moment + 1)).selectExpr("unix_micros(at)").collect()
    assert found[0] == moment
    assert frame_of(spark, source, row_of(moment + 1, moment + 2)).collect() == []


TIMELESS: dict[str, tuple[str, str, type[FloodmarkError]]] = {
    "no time": ("1,\n", "id INT, at TIMESTAMP", WatermarkMissing),
    "no text": ("1,\n", "id INT, at STRING", WatermarkMissing),
    "no day": ("1,\n", "id INT, at DATE", WatermarkMissing),
    "no wall time": ("1,\n", "id INT, at TIMESTAMP_NTZ", WatermarkMissing),
    "no ISO": ("1,25.10.2020\n", "id INT, at STRING", SourceValueUnfit),
    "no ISO in a timestamp": ("1,25.10.2020\n", "id INT, at TIMESTAMP", SourceValueUnfit),
    "no such day": ("1,2020-02-30\n", "id INT, at STRING", SourceValueUnfit),
    "only a time of the day": ("1,12:30\n", "id INT, at STRING", SourceValueUnfit),
    "only a year": ("1,2020\n", "id INT, at STRING", SourceValueUnfit),
}


@pytest.mark.parametrize(("text", "schema", "kind"), TIMELESS.values(), ids=TIMELESS)
def test_a_row_without_a_time_fails_the_cell_whatever_its_range(
    spark: SparkSession, drops: Path, text: str, schema: str, kind: type[FloodmarkError]
) -> None:
    (drops / "a\nb.csv").write_text(text)
    error = refused(spark, source_of(drops, time="column", column="at", schema=schema))
    assert type(error) is kind
    assert "a b.csv" in error.fact
    assert error.fields["column"] == "at"


def test_long_ranges_with_many_changes_of_the_clock_are_read(spark: SparkSession, drops: Path) -> None:
    walls = [
        micros_to_wall(at("1990-01-01") + number * 1_000_000_000_000_000, zone_of(BERLIN)) for number in range(-1, 35)
    ]
    pq.write_table(pa.table({"at": pa.array(walls, pa.timestamp("us")), "id": range(36)}), drops / "a")
    source = source_of(drops, "parquet", time="column", column="at")
    frame = frame_of(spark, source, row_of(at("1990-01-01"), at("2020-01-01")))
    expected = [number for number, shown in enumerate(walls) if 1990 <= shown.year < 2020]
    assert [number for (number,) in rows_of(frame, "id")] == expected


def test_a_session_needs_nothing_special_for_hundreds_of_files(spark: SparkSession, drops: Path) -> None:
    for number in range(200):
        (drops / f"{number:03}.csv").write_text(f"{number}\n")
        os.utime(drops / f"{number:03}.csv", (number, number))
    source = source_of(drops, schema="id INT")
    found = frame_of(spark, source).selectExpr("sum(id)", "sum(unix_seconds(_file_time))", "count(DISTINCT _file)")
    assert tuple(found.collect()[0]) == (19900, 19900, 200)
