"""Rows fit a table by their types alone: they are widened, filled, added, rescued, or refused with the column named."""

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, get_args

import pyarrow as pa
import pytest

from floodmark.errors import InvalidOption, TableUnfit
from floodmark.ingest.job.job import Drift
from floodmark.ingest.landing.column_types import type_holding, union_schema
from floodmark.ingest.landing.fitting import RowFitter

ALL: tuple[Drift, ...] = get_args(Drift)


def schema(**columns: Any) -> pa.Schema:
    return pa.schema(list(columns.items()))


def batch(rows: pa.Schema, **values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(values, schema=rows)


def a(**fields: Any) -> Any:
    return pa.struct(list(fields.items()))


I8, I16, I32, I64 = pa.int8(), pa.int16(), pa.int32(), pa.int64()
F32, F64 = pa.float32(), pa.float64()
MOMENT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
dec = pa.decimal128

HOLDS: list[tuple[Any, Any]] = [
    (I64, I64),
    (I64, I32),
    (I64, I8),
    (I16, I8),
    (F64, F32),
    (F64, I32),
    (F64, I16),
    (F32, I16),
    (F32, I8),
    (dec(3, 0), I8),
    (dec(5, 0), I16),
    (dec(12, 2), I32),
    (dec(19, 0), I64),
    (dec(38, 19), I64),
    (dec(10, 2), dec(10, 2)),
    (dec(11, 3), dec(10, 2)),
    (dec(12, 2), dec(10, 2)),
    (I32, dec(9, 0)),
    (I64, dec(18, 0)),
    (I8, dec(2, 0)),
    (I16, dec(4, 0)),
    (pa.string(), pa.null()),
    (pa.list_(I8), pa.null()),
    (pa.list_(I64), pa.list_(pa.null())),
    (pa.list_(I64), pa.list_(I8)),
    (pa.map_(pa.string(), F64), pa.map_(pa.string(), F32)),
    (pa.map_(I64, I8), pa.map_(I32, I8)),
    (a(x=I64, y=I8), a(x=I8)),
    (a(x=I8), a(x=I8, y=pa.null())),
]

HOLDS_NOT: list[tuple[Any, Any]] = [
    (I32, I64),
    (I8, I16),
    (F32, F64),
    (F32, I32),
    (F64, I64),
    (I64, F64),
    (I64, pa.bool_()),
    (pa.bool_(), I8),
    (dec(2, 0), I8),
    (dec(11, 2), I32),
    (dec(18, 0), I64),
    (dec(10, 2), dec(10, 3)),
    (dec(10, 3), dec(10, 2)),
    (I32, dec(10, 0)),
    (I64, dec(19, 0)),
    (I64, dec(10, 1)),
    (F64, dec(5, 2)),
    (dec(20, 5), F32),
    (pa.string(), I64),
    (I64, pa.string()),
    (pa.string(), pa.binary()),
    (pa.binary(), pa.string()),
    (MOMENT, pa.date32()),
    (MOMENT, LOCAL),
    (LOCAL, MOMENT),
    (pa.date32(), MOMENT),
    (MOMENT, I64),
    (pa.list_(I8), pa.list_(I64)),
    (pa.list_(I8), I8),
    (a(x=I8), pa.list_(I8)),
    (pa.map_(I8, I8), a(x=I8)),
    (pa.map_(I8, I8), pa.map_(I16, I8)),
    (pa.map_(I8, I8), pa.map_(I8, I16)),
    (a(x=I8), a(x=I16)),
    (pa.struct([pa.field("x", I8), pa.field("y", I8, nullable=False)]), a(x=I8)),
]


@pytest.mark.parametrize(("table", "rows"), HOLDS)
def test_a_column_holds_what_it_holds_without_loss(table: Any, rows: Any) -> None:
    for grow in (False, True):
        assert type_holding(table, rows, grow=grow) == table


@pytest.mark.parametrize(("table", "rows"), HOLDS_NOT)
def test_a_column_does_not_hold_what_could_be_lost_whatever_the_values(table: Any, rows: Any) -> None:
    for grow in (False, True):
        assert type_holding(table, rows, grow=grow) is None


@pytest.mark.parametrize(
    ("table", "rows", "grown"),
    [
        (a(x=I8), a(x=I8, y=I8), a(x=I8, y=I8)),
        (a(x=I64), a(y=I8, x=I8), a(x=I64, y=I8)),
        (pa.list_(a(x=I8)), pa.list_(a(y=I8)), pa.list_(a(x=I8, y=I8))),
        (pa.map_(I8, a(x=I8)), pa.map_(I8, a(y=I8)), pa.map_(I8, a(x=I8, y=I8))),
        (a(x=a(y=I8)), a(x=a(z=I8)), a(x=a(y=I8, z=I8))),
        (a(x=I8), pa.struct([pa.field("y", a(z=I8), nullable=False)]), a(x=I8, y=a(z=I8))),
    ],
)
def test_structs_grow_only_where_they_may(table: Any, rows: Any, grown: Any) -> None:
    assert type_holding(table, rows, grow=True) == grown
    assert type_holding(table, rows, grow=False) is None


@pytest.mark.parametrize("drift", ALL)
def test_rows_are_widened_filled_and_put_in_the_order_of_the_table(drift: Drift) -> None:
    table = schema(id=I64, price=dec(12, 2), note=pa.string(), _rescued=pa.string())
    rows = schema(price=pa.int16(), id=pa.uint16())
    fitted = RowFitter(table, drift).fit(rows)
    assert (fitted.schema, fitted.added, fitted.rescued) == (table, (), ())
    made = fitted.apply(batch(rows, price=[3, None], id=[65535, 1]))
    assert made.to_pylist() == [
        {"id": 65535, "price": Decimal("3.00"), "note": None, "_rescued": None},
        {"id": 1, "price": None, "note": None, "_rescued": None},
    ]


def test_a_table_is_made_from_rows_with_columns_that_may_all_be_null() -> None:
    inner = pa.struct([pa.field("x", I8, nullable=False)])
    rows = pa.schema(
        [pa.field("id", pa.uint32(), nullable=False), ("s", inner), ("l", pa.list_(inner)), ("n", pa.null())]
    )
    fitted = RowFitter(None).fit(rows)
    nullable = pa.list_(pa.field("element", a(x=I8)))
    assert (fitted.schema, fitted.added) == (schema(id=I64, s=a(x=I8), l=nullable), ())


def test_a_table_that_is_made_to_rescue_has_the_column_for_it() -> None:
    fitted = RowFitter(None, "rescue").fit(schema(id=I64))
    assert fitted.schema == schema(id=I64, _rescued=pa.string())
    assert fitted.apply(batch(schema(id=I64), id=[1])).to_pylist() == [{"id": 1, "_rescued": None}]


def test_evolving_adds_columns_behind_those_of_the_table_and_grows_structs() -> None:
    table, rows = schema(s=a(x=I8), id=I64), schema(new=pa.uint8(), s=a(y=I8), nothing=pa.null(), id=I64)
    fitted = RowFitter(table, "evolve").fit(rows)
    assert fitted.schema == schema(s=a(x=I8, y=I8), id=I64, new=I16)
    assert fitted.added == (pa.field("s", a(x=I8, y=I8)), pa.field("new", I16))
    made = fitted.apply(batch(rows, new=[7], s=[{"y": 5}], nothing=[None], id=[1]))
    assert made.to_pylist() == [{"s": {"x": None, "y": 5}, "id": 1, "new": 7}]


@pytest.mark.parametrize("drift", ALL)
def test_columns_that_are_null_for_all_that_is_known_change_no_table(drift: Drift) -> None:
    table = schema(id=I64, note=pa.string(), _rescued=pa.string())
    rows = schema(id=I64, note=pa.null(), more=pa.null())
    fitted = RowFitter(table, drift).fit(rows)
    assert (fitted.schema, fitted.added) == (table, ())
    made = fitted.apply(batch(rows, id=[1], note=[None], more=[None])).to_pylist()
    assert made == [{"id": 1, "note": None, "_rescued": None}]


def test_what_the_table_lacks_or_has_otherwise_is_rescued() -> None:
    table, rows = schema(id=I64, size=I32), schema(size=pa.string(), id=I32, new=MOMENT, empty=pa.list_(pa.null()))
    fitted = RowFitter(table, "rescue").fit(rows)
    assert fitted.schema == schema(id=I64, size=I32, _rescued=pa.string())
    assert fitted.added == (pa.field("_rescued", pa.string()),)
    assert set(fitted.rescued) == {"size", "new", "empty"}
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    made = fitted.apply(batch(rows, size=["big", None], id=[1, 2], new=[noon, None], empty=[[], None])).to_pylist()
    rescued = {"size": "big", "new": "2026-01-01T12:00:00.000000Z", "empty": []}
    assert (made[0].pop("_rescued"), made[1]) == (
        json.dumps(rescued, separators=(",", ":")),
        {"id": 2, "size": None, "_rescued": None},
    )
    assert made[0] == {"id": 1, "size": None}


def test_rows_of_the_table_itself_keep_what_was_rescued_before() -> None:
    table = schema(id=I64, _rescued=pa.string())
    fitted = RowFitter(table, "rescue").fit(table)
    assert (fitted.schema, fitted.added, fitted.rescued) == (table, (), ())
    before = batch(table, id=[1, 2], _rescued=['{"a":1}', None])
    assert fitted.apply(before) == before


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (None, schema(id=I64, _rescued=pa.string())),
        (schema(id=I64), schema(id=I64, _rescued=pa.string())),
        (schema(id=I64, _rescued=pa.string()), schema(id=I64, _rescued=I64)),
        (schema(id=I64, _rescued=pa.string()), schema(id=I64, new=I64, _rescued=pa.string())),
    ],
)
def test_rows_of_others_have_no_column_for_rescued_values(table: pa.Schema | None, rows: pa.Schema) -> None:
    with pytest.raises(TableUnfit, match="The rows have a column _rescued") as refused:
        RowFitter(table, "rescue").fit(rows)
    assert refused.value.fields["column"] == "_rescued"


def test_names_that_no_table_has_can_be_rescued() -> None:
    rows = pa.schema([("id", I64), ("ID", I64), ("a b", I64), ("", I64)])
    fitted = RowFitter(schema(id=I64), "rescue").fit(rows)
    made = fitted.apply(pa.RecordBatch.from_arrays([pa.array([one]) for one in range(4)], schema=rows)).to_pylist()
    assert made[0]["id"] == 0
    assert json.loads(made[0]["_rescued"]) == {"ID": 1, "a b": 2, "": 3}


def test_moments_without_zone_are_kept_in_lists_and_in_maps_that_are_there() -> None:
    table = schema(m=pa.map_(I8, LOCAL), l=pa.list_(pa.field("element", a(x=LOCAL))))
    assert RowFitter(table, "evolve").fit(table).schema == table
    assert RowFitter(None).fit(schema(l=table.field("l").type)).schema == schema(l=table.field("l").type)


def never_null(name: str, kind: Any) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=False)])


REFUSED: list[tuple[str, RowFitter, Any, str, str]] = [
    (
        "a column that a frozen table lacks",
        RowFitter(schema(id=I64)),
        schema(id=I64, new=I8),
        "new",
        'drift = "evolve"',
    ),
    (
        "a constant that a frozen table lacks",
        RowFitter(schema(id=I64), constants={"unit": 1}),
        schema(id=I64),
        "unit",
        'drift = "rescue"',
    ),
    ("a field that a frozen table lacks", RowFitter(schema(s=a(x=I8))), schema(s=a(y=I8)), "s", "change the table"),
    ("another type, frozen", RowFitter(schema(id=I32)), schema(id=I64), "id", 'drift = "rescue"'),
    ("another type, evolving", RowFitter(schema(id=I32), "evolve"), schema(id=I64), "id", "Cast it"),
    (
        "another type of what is required",
        RowFitter(schema(id=I32), "rescue", required=("id",)),
        schema(id=I64),
        "id",
        "Cast it",
    ),
    ("another type of what is never null", RowFitter(never_null("id", I32), "rescue"), schema(id=I64), "id", "Cast it"),
    ("no column that is never null", RowFitter(never_null("id", I32), "rescue"), schema(x=I64), "id", "Add it"),
    (
        "no column that is required",
        RowFitter(schema(id=I32), required=("id",)),
        schema(ID=I32),
        "id",
        "under this name",
    ),
    (
        "no column that is required of a new table",
        RowFitter(None, required=("id",)),
        schema(x=I32),
        "id",
        "under this name",
    ),
    ("nothing that is known", RowFitter(None), schema(x=pa.null()), "", "Create the table first"),
    ("a blank in a name", RowFitter(None), pa.schema([("a b", I8)]), "a b", "AS in a query"),
    ("no name", RowFitter(None), pa.schema([("", I8)]), "", "AS in a query"),
    ("a comma in a name inside", RowFitter(None), schema(s=pa.struct([("a,b", I8)])), "s.a,b", "AS in a query"),
    (
        "a brace in a new name",
        RowFitter(schema(id=I8), "evolve"),
        pa.schema([("id", I8), ("{", I8)]),
        "{",
        "AS in a query",
    ),
    ("names that differ by case", RowFitter(None), schema(id=I8, Id=I8), "Id", "Rename one"),
    ("a new name that differs by case", RowFitter(schema(id=I8), "evolve"), schema(id=I8, ID=I8), "ID", "Rename one"),
    ("names inside that differ by case", RowFitter(None), schema(l=pa.list_(a(x=I8, X=I8))), "l.X", "Rename one"),
    ("a column twice", RowFitter(None, "rescue"), pa.schema([("id", I8), ("id", I8)]), "id", "Rename one"),
    (
        "a column of the rows for rescued values",
        RowFitter(None, "rescue"),
        schema(_rescued=I8),
        "_rescued",
        "Rename it",
    ),
    (
        "a column of the table for rescued values",
        RowFitter(schema(_rescued=I8), "rescue"),
        schema(),
        "_rescued",
        "Write drift",
    ),
    ("moments without zone in a map", RowFitter(None), schema(m=pa.map_(I8, pa.list_(LOCAL))), "m", "with a zone"),
    (
        "moments without zone in a new map",
        RowFitter(schema(id=I8), "evolve"),
        schema(m=pa.map_(LOCAL, I8)),
        "m",
        "with a zone",
    ),
    ("a constant that no table holds", RowFitter(None, constants={"unit": 2**64}), schema(id=I8), "unit", "text"),
    ("a constant of another type", RowFitter(schema(unit=I8), constants={"unit": "x"}), schema(), "unit", "Cast it"),
    ("a constant that is too large", RowFitter(schema(unit=I8), constants={"unit": 128}), schema(), "unit", "Cast it"),
    ("a truth value for a number", RowFitter(schema(unit=I8), constants={"unit": True}), schema(), "unit", "Cast it"),
]


@pytest.mark.parametrize(
    ("fitting", "rows", "column", "remedy"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED]
)
def test_what_does_not_fit_is_refused_with_its_column_and_the_way_out(
    fitting: RowFitter, rows: Any, column: str, remedy: str
) -> None:
    with pytest.raises(TableUnfit) as refused:
        fitting.fit(rows)
    assert refused.value.fields.get("column", "") == column
    assert remedy in refused.value.remedy


def test_a_refusal_names_both_types_at_the_place_where_they_part() -> None:
    with pytest.raises(TableUnfit, match=r"The column s\.l\[\]\.x is byte in the table and string in the rows\."):
        RowFitter(schema(s=a(l=pa.list_(a(x=I8))))).fit(schema(s=a(l=pa.list_(a(x=pa.string())))))
    with pytest.raises(TableUnfit, match="a column new, array<long>, and the table has no such column"):
        RowFitter(schema(id=I8)).fit(schema(id=I8, new=pa.list_(I64)))


def test_a_drift_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidOption):
        RowFitter(None, "ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "kind"),
    [("eu", pa.string()), (7, I64), (1.5, F64), (True, pa.bool_()), (datetime(2026, 1, 1, tzinfo=UTC), MOMENT)],
)
def test_a_constant_is_the_same_in_all_rows(value: Any, kind: Any) -> None:
    fitted = RowFitter(None, constants={"unit": value}).fit(schema(id=I8))
    assert fitted.schema == schema(id=I8, unit=kind)
    assert fitted.apply(batch(schema(id=I8), id=[1, 2])).to_pydict()["unit"] == [value, value]


def test_a_column_of_the_rows_counts_before_a_constant() -> None:
    fitted = RowFitter(None, constants={"unit": "eu"}).fit(schema(unit=pa.string()))
    assert fitted.apply(batch(schema(unit=pa.string()), unit=["us"])).to_pylist() == [{"unit": "us"}]


@pytest.mark.parametrize("kind", [I8, I16, I32, I64])
def test_a_whole_number_that_is_a_constant_has_no_width_of_its_own(kind: Any) -> None:
    fitted = RowFitter(schema(unit=kind), constants={"unit": -128}).fit(schema())
    rows = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))
    assert fitted.apply(rows).to_pylist() == [{"unit": -128}]


def test_a_constant_of_none_is_null_and_adds_nothing() -> None:
    fitted = RowFitter(schema(id=I8, unit=pa.string()), constants={"unit": None, "other": None}).fit(schema(id=I8))
    assert fitted.apply(batch(schema(id=I8), id=[1])).to_pylist() == [{"id": 1, "unit": None}]


def test_constants_are_rescued_too() -> None:
    fitted = RowFitter(schema(id=I8, size=I8), "rescue", constants={"unit": "eu", "size": 128}).fit(schema(id=I8))
    made = fitted.apply(batch(schema(id=I8), id=[1])).to_pylist()
    assert json.loads(made[0].pop("_rescued")) == {"unit": "eu", "size": 128}
    assert made == [{"id": 1, "size": None}]


def test_what_is_required_must_be_there_and_may_be_null() -> None:
    rows = schema(id=I8, at=I8)
    fitted = RowFitter(None, required=("at",)).fit(rows)
    assert fitted.apply(batch(rows, id=[1], at=[None])).num_rows == 1


def test_a_null_for_a_column_that_is_never_null_is_refused_with_the_column() -> None:
    rows = schema(id=I8)
    with pytest.raises(TableUnfit, match="id is null in 1 of 2"):
        RowFitter(never_null("id", I64)).fit(rows).apply(batch(rows, id=[1, None]))


def test_what_is_sent_to_tasks_arrives_as_it_was() -> None:
    fitting = RowFitter(schema(id=I64), "rescue", {"unit": 1}, ("id",))
    assert pickle.loads(pickle.dumps(fitting)) == fitting
    fitted = fitting.fit(schema(id=I8))
    assert pickle.loads(pickle.dumps(fitted)) == fitted


def test_files_of_parts_are_united_in_one_schema() -> None:
    found = union_schema([schema(id=I64, s=a(x=I8)), schema(id=I64, new=I8), schema(s=a(y=I8))])
    assert found == schema(id=I64, s=a(x=I8, y=I8), new=I8)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (I64, I32),
        (I32, I64),
        (a(x=I64), a(x=I8)),
        (pa.list_(a(x=I64)), pa.list_(a(x=I8))),
        (a(x=I8), I8),
        (pa.map_(I64, I8), pa.map_(I8, I8)),
        (pa.map_(I8, I64), pa.map_(I8, I8)),
    ],
)
def test_files_of_parts_with_two_types_for_a_column_are_refused_also_where_one_could_be_widened(
    left: Any, right: Any
) -> None:
    with pytest.raises(TableUnfit) as refused:
        union_schema([schema(c=left), schema(c=right)])
    assert refused.value.fields["column"] == "c"


def test_parts_whose_columns_differ_by_case_are_refused() -> None:
    with pytest.raises(TableUnfit, match="differ by case"):
        union_schema([schema(id=I8), schema(ID=I8)])
