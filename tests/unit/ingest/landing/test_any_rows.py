"""Whatever the rows and the table: all of the rows is there afterwards, or a column is named that does not fit."""

import base64
import json
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder, Schema
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.delta import DeltaCommits
from floodmark.errors import TableUnfit
from floodmark.ingest.job.job import Drift
from floodmark.ingest.landing.fitting import RowConverter, RowFitter
from floodmark.ingest.landing.parquet import write_parquet
from support.examples import examples

# Python has microseconds; what becomes of nanoseconds is a row of another table.
_MOMENTS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001
_SECONDS = _MOMENTS.map(lambda one: one.replace(microsecond=0))
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_TIMES = st.times()


def _aware(moments: Any) -> Any:
    return moments.map(lambda one: one.replace(tzinfo=UTC))


def _decimals(digits: int, places: int) -> Any:
    top = 10**digits - 1
    return st.integers(-top, top).map(lambda one: _scaled(one, places))


def _scaled(number: int, places: int) -> Decimal:
    sign, digits, exponent = Decimal(number).as_tuple()
    assert isinstance(exponent, int)
    return Decimal((sign, digits, exponent - places))


def _ints(low: int, high: int) -> Any:
    return st.integers(low, high)


_LEAVES: list[tuple[Any, Any]] = [
    (pa.bool_(), st.booleans()),
    *((getattr(pa, f"int{n}")(), _ints(-(2 ** (n - 1)), 2 ** (n - 1) - 1)) for n in (8, 16, 32, 64)),
    *((getattr(pa, f"uint{n}")(), _ints(0, 2**n - 1)) for n in (8, 16, 32, 64)),
    (pa.float16(), st.floats(width=16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    *((pa.decimal128(p, s), _decimals(p, s)) for p, s in ((2, 0), (9, 0), (18, 0), (10, 2), (12, 2), (38, 10))),
    (pa.decimal256(45, 5), _decimals(45, 5)),
    (pa.string(), _TEXTS),
    (pa.large_string(), _TEXTS),
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.dictionary(pa.int8(), pa.string()), _TEXTS),
    (pa.date32(), st.dates()),
    (pa.time64("us"), _TIMES),
    (pa.duration("us"), st.timedeltas(timedelta(-9_999), timedelta(9_999))),
    (pa.timestamp("us"), _MOMENTS),
    (pa.timestamp("s"), _SECONDS),
    (pa.timestamp("us", "UTC"), _aware(_MOMENTS)),
    (pa.timestamp("ns", "Europe/Berlin"), _aware(_MOMENTS)),
    (pa.null(), st.none()),
]
_FIELDS = ("x", "y", "z")


@st.composite
def kinds(draw: Any, depth: int = 2) -> tuple[Any, Any]:
    """Draw a type, and what draws its values."""
    form = draw(st.sampled_from(["leaf"] * 4 + ["list", "struct", "map"] * (depth > 0)))
    if form == "leaf":
        kind, values = draw(st.sampled_from(_LEAVES))
        return kind, st.none() | values
    if form == "list":
        kind, values = draw(kinds(depth - 1))
        return pa.list_(kind), st.none() | st.lists(values, max_size=3)
    if form == "map":
        kind, values = draw(kinds(depth - 1))
        return pa.map_(pa.string(), kind), st.none() | st.lists(
            st.tuples(_TEXTS, values), max_size=2, unique_by=lambda one: one[0]
        )
    names = draw(st.lists(st.sampled_from(_FIELDS), min_size=1, unique=True))
    inner = {name: draw(kinds(depth - 1)) for name in names}
    return pa.struct([(name, kind) for name, (kind, _) in inner.items()]), st.none() | st.fixed_dictionaries(
        {name: values for name, (_, values) in inner.items()}
    )


@st.composite
def columns(draw: Any) -> tuple[pa.Schema, Any]:
    names = draw(st.lists(st.sampled_from(["a", "b", "c", "d", "A", "e f"]), min_size=1, max_size=4, unique=True))
    drawn = {name: draw(kinds()) for name in names}
    schema = pa.schema([(name, kind) for name, (kind, _) in drawn.items()])
    return schema, st.lists(st.fixed_dictionaries({name: values for name, (_, values) in drawn.items()}), max_size=5)


@st.composite
def cases(draw: Any) -> tuple[pa.Schema | None, pa.Schema, list[dict[str, Any]]]:
    """Draw a table and rows; often the table has columns as the rows have them, and others."""
    schema, values = draw(columns())
    table = None
    if draw(st.integers(0, 3)):
        other = draw(columns())[0]
        kept = [one for one in schema if draw(st.booleans())]
        names = {one.name for one in kept}
        try:
            table = RowFitter(None).fit(pa.schema([*kept, *(one for one in other if one.name not in names)])).schema
        except TableUnfit:
            table = pa.schema([("a", pa.int64())])
    return table, schema, draw(values)


def same(came: Any, back: Any) -> bool:
    """Return whether a value is there as it came, in the form that tables or JSON have for it."""
    if came is None or back is None:
        return came is back
    if isinstance(came, bool) or isinstance(back, bool):
        return came is back
    if isinstance(came, time):
        return isinstance(back, str) and time.fromisoformat(back) == came
    if isinstance(came, timedelta):
        return bool(back == came // timedelta(microseconds=1))
    if isinstance(came, float) and not math.isfinite(came):
        return float(back) == came or (math.isnan(came) and math.isnan(float(back)))
    if isinstance(came, int | Decimal) and isinstance(back, str):
        return Decimal(back) == came
    if isinstance(came, datetime):
        when = datetime.fromisoformat(back) if isinstance(back, str) else back
        return bool(when == came) and (when.tzinfo is None) == (came.tzinfo is None)
    if isinstance(came, date) and isinstance(back, str):
        return date.fromisoformat(back) == came
    if isinstance(came, bytes) and isinstance(back, str):
        return base64.b64decode(back) == came
    if isinstance(came, dict):
        # A field of which nothing is known but nulls has no type, and is left out.
        kept = all(same(one, back[name]) if name in back else is_nothing(one) for name, one in came.items())
        return kept and all(one is None for name, one in back.items() if name not in came)
    if isinstance(came, list | tuple):
        return len(came) == len(back) and all(same(one, other) for one, other in zip(came, back, strict=True))
    return bool(came == back)


def is_nothing(value: Any) -> bool:
    if isinstance(value, dict):
        return all(is_nothing(one) for one in value.values())
    if isinstance(value, list):
        return all(is_nothing(one[1] if isinstance(one, tuple) else one) for one in value)
    return value is None


def check(rows: list[dict[str, Any]], back: list[dict[str, Any]], fitted: RowConverter, left_out: set[str]) -> None:
    assert len(back) == len(rows)
    for came, there in zip(rows, back, strict=True):
        rescued = json.loads(there["_rescued"]) if there.get("_rescued") is not None else {}
        for name, value in came.items():
            if name in fitted.rescued:
                assert same(value, rescued.get(name)), (name, value, rescued)
                assert there.get(name) is None
            elif name not in left_out:
                assert same(value, there[name]), (name, value, there[name])


def knows_nothing(kind: Any) -> bool:
    if pa.types.is_struct(kind):
        return all(knows_nothing(one.type) for one in kind)
    if pa.types.is_map(kind):
        return knows_nothing(kind.item_type)
    return knows_nothing(kind.value_type) if pa.types.is_list(kind) else bool(pa.types.is_null(kind))


@settings(max_examples=examples(200), deadline=None)
@given(cases(), st.sampled_from(get_args(Drift)))
def test_all_of_the_rows_is_in_the_table_or_a_column_is_named(
    case: tuple[pa.Schema | None, pa.Schema, list[dict[str, Any]]], drift: Drift
) -> None:
    table, schema, rows = case
    # Numbers in the rows, from which the order is told again.
    schema = schema.append(pa.field("number", pa.int64()))
    rows = [{**row, "number": number} for number, row in enumerate(rows)]
    fitting = RowFitter(None if table is None else table.append(pa.field("number", pa.int64())), drift)
    try:
        fitted = fitting.fit(schema)
    except TableUnfit as refused:
        column = str(refused.fields["column"]).replace("[]", ".").split(".")[0]
        assert column in schema.names
        return
    left_out = {one.name for one in schema if one.name not in fitted.schema.names and knows_nothing(one.type)}
    batch = pa.RecordBatch.from_pylist(rows, schema=schema)
    with TemporaryDirectory() as name:
        place = Path(name)
        staged = write_parquet([batch], place / "new", fitting, table=place, rows_a_file=3, name="part")
        if not rows:
            assert staged.files == ()
            return
        files = [str(place / file.path) for file in staged.files]
        by_arrow = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
        check(rows, by_arrow, fitted, left_out)
        by_duckdb = duckdb.read_parquet(files).order("number").to_arrow_table().to_pylist()
        check(rows, by_duckdb, fitted, left_out)
        target = DeltaCommits.open(place, "app", Schema.from_arrow(fitted.schema).to_json())
        target.check(Schema.from_arrow(fitted.schema).to_json())
        target.commit(staged.files, 1, {})
        query = QueryBuilder().register("t", DeltaTable(name)).execute("SELECT * FROM t ORDER BY number")
        check(rows, pa.table(query.read_all()).to_pylist(), fitted, left_out)
