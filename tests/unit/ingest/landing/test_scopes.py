"""Which rows and which files a cell stands for: what is in its range and of its unit, and nothing else."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.delta import StagedFile
from floodmark.errors import KeyMissing, OutOfScope, TableUnfit
from floodmark.ingest import Range
from floodmark.ingest.landing.parquet import KeptRows, write_rows
from floodmark.ingest.landing.tasks import Destination, LiveFile, Scope, live_files, may_overlap_bounds, may_share_keys

DAY = 86_400_000_000
MOMENT = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def scope(unit: Mapping[str, Any] | None = None, *, zone: str = "UTC", column: str = "at", **more: Any) -> Scope:
    """Return the second day of 1970."""
    return Scope(column, Range(DAY, 2 * DAY), zone, unit or {}, **more)


def column(values: list[Any], kind: pa.DataType) -> Any:
    return pa.table({"at": pa.array(values, kind)})


@pytest.mark.parametrize(
    ("kind", "values", "given"),
    [
        (MOMENT, [DAY - 1, DAY, 2 * DAY - 1, 2 * DAY], {}),
        (pa.timestamp("us", "Asia/Tokyo"), [DAY - 1, DAY, 2 * DAY - 1, 2 * DAY], {}),
        (
            pa.timestamp("us"),
            [DAY + 9 * DAY // 24 - 1, DAY + 9 * DAY // 24, 2 * DAY, 2 * DAY + 9 * DAY // 24],
            {"zone": "Asia/Tokyo"},
        ),
        (pa.date32(), [0, 1, 1, 2], {}),
        (pa.int64(), [86_399, 86_400, 172_799, 172_800], {"epoch_type": "epoch-seconds"}),
        (pa.int32(), [86_399, 86_400, 172_799, 172_800], {"epoch_type": "epoch-seconds"}),
        (pa.int64(), [DAY - 1, DAY, 2 * DAY - 1, 2 * DAY], {"epoch_type": "epoch-micros"}),
        (pa.string(), ["19700101", "19700102", "1970010223", "19700103"], {"pattern": "%Y%m%d"}),
        (pa.string_view(), ["19700101", "19700102", "1970010223", "19700103"], {"pattern": "%Y%m%d"}),
        (pa.string(), ["1970-01-01T23:59:59", "1970-01-02T00:00:00", "1970-01-02 23:59", "1970-01-03"], {}),
        (
            pa.large_string(),
            [
                "1970-01-01T23:59:59Z",
                "1970-01-01T19:00:00-05:00",
                "1970-01-03T00:59:00+01:00",
                "1970-01-02T19:00-05:00",
            ],
            {},
        ),
        (
            pa.string_view(),
            ["1970-01-02T08:59:59", "1970-01-02T09:00:00", "1970-01-03T08:00:00", "1970-01-03T09:00:00"],
            {"zone": "Asia/Tokyo"},
        ),
    ],
    ids=repr,
)
def test_a_range_holds_its_start_and_not_its_end_in_whatever_a_column_has(
    kind: pa.DataType, values: list[Any], given: dict[str, Any]
) -> None:
    found = scope(**given).contains(column([*values, None], kind)).to_pylist()
    assert found == [False, True, True, False, False], "a row without a moment is in no range"


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        (pa.int64(), [5], "has the type int64, which is no time"),
        (pa.float64(), [5.0], "has the type double, which is no time"),
        (pa.string(), [None, "1970-01-02", "soon"], "such as 'soon'"),
        (pa.string(), ["1970-01-02T00:00:00", "1970-01-02T00:00:00Z"], "texts that are no times, such as None"),
    ],
)
def test_a_column_that_says_no_moments_is_refused(kind: pa.DataType, values: list[Any], told: str) -> None:
    with pytest.raises(TableUnfit, match=told) as refused:
        scope().contains(column(values, kind))
    assert refused.value.fields["column"] == "at"


@pytest.mark.parametrize(
    ("kind", "values", "value", "held"),
    [
        (pa.string(), ["north", "south", None], "north", [True, False, False]),
        (pa.large_string(), ["north", "south", None], "north", [True, False, False]),
        (pa.string(), ["north", "", None], None, [False, False, True]),
        (pa.int32(), [7, 8, None], 7, [True, False, False]),
        (pa.int64(), [7, 8, None], "7", [True, False, False]),
        (pa.string(), ["7", "8", None], 7, [True, False, False]),
        (pa.date32(), [0, 1, None], "1970-01-01", [True, False, False]),
        (pa.bool_(), [True, False, None], True, [True, False, False]),
    ],
)
def test_a_unit_has_the_rows_with_its_values(
    kind: pa.DataType, values: list[Any], value: Any, held: list[bool]
) -> None:
    rows = pa.table({"at": pa.array([DAY] * 3, MOMENT), "shop": pa.array(values, kind)})
    assert scope({"shop": value}).contains(rows).to_pylist() == held
    other = Scope("at", Range(0, DAY), "UTC", {"shop": value})
    assert other.contains(rows).to_pylist() == [False] * 3, "and only in its range"


def test_a_unit_whose_value_a_column_cannot_have_is_refused() -> None:
    rows = pa.table({"at": pa.array([DAY], MOMENT), "shop": pa.array([7], pa.int64())})
    with pytest.raises(TableUnfit, match="shop = 'north', and the column has the type int64") as refused:
        scope({"shop": "north"}).contains(rows)
    assert refused.value.fields["column"] == "shop"


def test_one_row_outside_among_others_is_refused_and_shown() -> None:
    rows = pa.table({"at": pa.array([DAY, 2 * DAY, DAY], MOMENT), "shop": ["north"] * 3, "more": [1, 2, 3]})
    with pytest.raises(
        OutOfScope, match=r"shop = 'north', floor = 1, and has .*1970, 1, 3.*'shop': 'north'}"
    ) as refused:
        scope({"shop": "north", "floor": 1}).check(rows)
    assert "more" not in str(refused.value)
    scope({"shop": "north", "floor": 1}).check(rows.take([0, 2]))
    scope().check(rows.slice(0, 0))


def known(**columns: Any) -> Any:
    return pa.table(columns)


def moments(*values: int | None) -> Any:
    return pa.array(values, MOMENT)


def test_files_are_passed_over_only_if_their_bounds_say_so() -> None:
    bounds = [(DAY - 9, DAY - 1), (DAY - 9, DAY), (2 * DAY - 1, 2 * DAY), (2 * DAY, 3 * DAY), (0, 9 * DAY)]
    lows, highs = zip(*bounds, (None, None), (None, DAY - 1), (2 * DAY, None), strict=True)
    files = known(**{"min.at": moments(*lows), "max.at": moments(*highs)})
    assert scope().may_contain(files).to_pylist() == [False, True, True, False, True, True, False, False]
    assert scope().may_contain(known(path=["a", "b"])).to_pylist() == [True, True], "nothing is known of them"


def test_texts_of_a_pattern_sort_as_their_moments_do() -> None:
    files = known(**{"min.at": ["19700101", "19700102", "19700103"], "max.at": ["1970010123", "19700105", "19700103"]})
    assert scope(pattern="%Y%m%d").may_contain(files).to_pylist() == [False, True, False]


def test_bounds_of_texts_are_no_bounds_of_moments() -> None:
    texts = ["1970-01-01T23:00:00-05:00", "1970-01-02T00:30:00+00:00"]
    early = Scope("at", Range(DAY, DAY + DAY // 12), "UTC", {})
    assert early.contains(column(texts, pa.string())).to_pylist() == [False, True]
    files = known(**{"min.at": [min(texts), "1971-01-01"], "max.at": [max(texts), "1971-01-02"]})
    assert early.may_contain(files).to_pylist() == [True, False]


@pytest.mark.parametrize("kind", ["-23:59", "+23:59", ""])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
@pytest.mark.parametrize("hour", range(0, 48, 5))
def test_a_file_with_a_text_in_the_range_is_never_passed_over(kind: str, zone: str, hour: int) -> None:
    text = f"{(EPOCH + timedelta(hours=hour)).isoformat(sep=' ')[:19]}{kind}"
    files = known(**{"min.at": [text], "max.at": [text]})
    for start in range(-3 * DAY, 6 * DAY, DAY // 8):
        one = Scope("at", Range(start, start + DAY // 8), zone, {})
        if one.contains(column([text], pa.string())).to_pylist() == [True]:
            assert one.may_contain(files).to_pylist() == [True]
            return
    raise AssertionError("it is in some range")


@pytest.mark.parametrize(
    ("value", "files", "told"),
    [
        (5, {"min.shop": [1, 5, 6, None, 5, None], "max.shop": [4, 5, 9, 4, None, None]}, [0, 1, 0, 0, 1, 1]),
        (5, {"partition.shop": [5, 6, None]}, [1, 0, 0]),
        ("5", {"partition.shop": ["5", "6", None]}, [1, 0, 0]),
        (None, {"null_count.shop": [0, 1, 2, None]}, [0, 1, 1, 1]),
        (None, {"partition.shop": ["5", None]}, [1, 1]),
        (5, {"path": ["a"]}, [1]),
    ],
)
def test_files_of_other_units_are_passed_over(value: Any, files: dict[str, list[Any]], told: list[int]) -> None:
    assert scope({"shop": value}).may_contain(known(**files)).to_pylist() == [bool(one) for one in told]


def file_of(table: Path, rows: Any, **partition: Any) -> LiveFile:
    table.mkdir(exist_ok=True)
    pq.write_table(rows, table / "a.parquet")
    return LiveFile(table, "a.parquet", rows.num_rows, partition)


def test_rows_of_many_batches_are_counted_and_kept(tmp_path: Path) -> None:
    many = 200_000
    step = 4 * DAY // many
    rows = pa.table({"at": pa.array([n * step for n in range(many)], MOMENT), "n": pa.array(range(many), pa.int32())})
    file = file_of(tmp_path / "table", rows)
    assert file.count_rows(scope(), rows.schema) == (many // 4, many)
    kept = pa.Table.from_batches(file.rows_outside(scope(), rows.schema))
    assert kept["n"].to_pylist() == [*range(many // 4), *range(many // 2, many)]


def test_a_file_without_rows_holds_none(tmp_path: Path) -> None:
    rows = pa.table({"at": moments()})
    assert file_of(tmp_path / "table", rows).count_rows(scope(), rows.schema) == (0, 0)


@pytest.mark.parametrize(
    ("partition", "value", "held"),
    [("5", 5, 2), ("6", 5, 0), (None, None, 2), (5, 5, 2)],
)
def test_the_values_of_partitions_are_those_of_all_rows(tmp_path: Path, partition: Any, value: Any, held: int) -> None:
    schema = pa.schema([("at", MOMENT), ("shop", pa.int32()), ("new", pa.string())])
    file = file_of(tmp_path / "table", pa.table({"at": moments(DAY, DAY, 0)}), shop=partition)
    assert file.count_rows(scope({"shop": value}), schema) == (held, 3)
    (batch,) = file.batches(schema)
    number = None if partition is None else int(partition)
    assert (batch.schema, batch.column("shop").to_pylist()) == (schema, [number] * 3)
    assert batch.column("new").to_pylist() == [None] * 3, "a column that the table got later"


def test_rows_are_read_with_the_types_of_the_table(tmp_path: Path) -> None:
    file = file_of(tmp_path / "table", pa.table({"at": pa.array([DAY], pa.timestamp("ms", "UTC"))}))
    (batch,) = file.batches(pa.schema([("at", MOMENT)]))
    assert batch.schema.field("at").type == MOMENT


def test_the_column_of_the_range_may_be_one_of_the_unit(tmp_path: Path) -> None:
    rows = pa.table({"at": pa.array([date(1970, 1, 2), date(1970, 1, 3)])})
    assert file_of(tmp_path / "table", rows).count_rows(scope({"at": "1970-01-02"}), rows.schema) == (1, 2)


def test_live_files_have_their_partitions(tmp_path: Path) -> None:
    files = known(**{"path": ["a", "b"], "num_records": [1, 2], "partition.shop": ["x", None], "min.at": moments(1, 2)})
    assert live_files(tmp_path, files) == [
        LiveFile(tmp_path, "a", 1, {"shop": "x"}),
        LiveFile(tmp_path, "b", 2, {"shop": None}),
    ]


def staged(low: Any, high: Any) -> StagedFile:
    lows, highs = ({} if value is None else {"id": value, "other": value} for value in (low, high))
    bounds = {"minValues": lows, "maxValues": highs}
    return StagedFile("new", 1, 1, 1, json.dumps(bounds), {})


@pytest.mark.parametrize(
    ("new", "told"),
    [
        ([staged(5, 6)], [0, 1, 1, 0, 1, 0, 1]),
        ([staged(6, 6), staged(5, 5)], [0, 1, 1, 0, 1, 0, 1]),
        ([staged(0, 0), staged(9, 9)], [1, 1, 1, 1, 1, 1, 1]),
        ([staged(5, 6), staged(None, None)], [1, 1, 1, 1, 1, 1, 1]),
    ],
)
def test_files_without_a_key_of_new_rows_are_not_merged(new: list[StagedFile], told: list[int]) -> None:
    files = known(**{"min.id": [1, 1, 6, 7, None, None, 5], "max.id": [4, 5, 9, 9, None, 4, None]})
    assert may_share_keys(files, new, ["id", "other"]).to_pylist() == [bool(one) for one in told]


@pytest.mark.parametrize(
    ("bounds", "told"),
    [
        ({"id": (5, 6)}, [1, 1, 0]),
        ({"shop": ("b", "c")}, [0, 1, 1]),
        ({"id": (5, 6), "shop": ("b", "c")}, [0, 1, 0]),
        ({"unknown": (1, 2)}, [1, 1, 1]),
        ({}, [1, 1, 1]),
    ],
)
def test_files_with_other_values_or_in_other_partitions_are_passed_over(bounds: Any, told: list[int]) -> None:
    files = known(**{"min.id": [1, 6, 7], "max.id": [5, 9, 9], "partition.shop": ["a", "c", None]})
    assert may_overlap_bounds(files, bounds).to_pylist() == [bool(one) for one in told]


def destination(table: Path, **more: Any) -> Destination:
    return Destination(table, table / "floodmark-a1", None, "evolve", {}, **more)


def test_each_row_that_is_merged_has_its_keys(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, None], pa.int64())}).to_batches()
    with pytest.raises(KeyMissing) as missing:
        write_rows(iter(rows), destination(tmp_path, keys=("id",)), "new")
    assert missing.value.fields["column"] == "id"
    given = replace(destination(tmp_path, keys=("shop", "id")), constants={"shop": "north"})
    assert write_rows(iter([rows[0].slice(0, 1)]), given, "new").rows == 1, "one of the unit is added"


def test_rows_without_the_column_of_the_range_are_refused_unless_there_are_none(tmp_path: Path) -> None:
    (batch,) = pa.table({"id": pa.array([1], pa.int64())}).to_batches()
    with pytest.raises(TableUnfit, match="The rows have no column at"):
        write_rows(iter([batch]), destination(tmp_path, scope=scope()), "new")
    assert write_rows(iter([batch.slice(0, 0)]), destination(tmp_path, scope=scope()), "new").rows == 0


def test_a_file_of_which_nothing_is_kept_still_has_its_columns(tmp_path: Path) -> None:
    rows = pa.table({"at": moments(DAY)})
    empty = file_of(tmp_path / "table", rows.slice(0, 0))
    parts = list(KeptRows(empty, scope(), rows.schema).read())
    assert [part.schema for part in parts] == [rows.schema] * len(parts)
    assert parts
