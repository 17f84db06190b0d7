"""Which types the columns of PostgreSQL have outside it.

| PostgreSQL | here |
|---|---|
| `smallint`, `integer`, `bigint`, `oid` | int16, int32, int64, int64 |
| `real`, `double precision` | float, double |
| `numeric(p, s)` with p up to 38; `money` | decimal128(p, s); decimal128(19, 2) |
| `numeric` without precision, or with more | string, since nothing else holds all of them exactly |
| `text`, `varchar`, `char`, `name`, an enum | string |
| `boolean`, `bytea`, `date` | bool, binary, date32 |
| `timestamp` | timestamp in microseconds without a zone: what the clock of the source's zone showed |
| `timestamptz` | timestamp in microseconds, UTC |
| an array of one dimension of these, but for numbers with decimals | a list of them |
| an array of anything else | a list of string |
| everything else, as `json`, `jsonb`, `uuid`, `time`, `interval`, `inet`, ranges | string, as PostgreSQL writes it |

A domain is what it is a domain of.
"""

from typing import Final

import pyarrow as pa

from floodmark.extract._sql_columns import MOST_DIGITS, Column

_PLAIN: Final = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
    "name": pa.string(),
    "bool": pa.bool_(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_TIMES: Final = {"timestamp": ("timestamp",), "timestamptz": ("timestamptz",), "date": ("date",)}
_NUMBERS: Final = ("int2", "int4", "int8", "float4", "float8", "numeric")


def postgres_column(
    name: str, kind: str, modifier: int = -1, *, element: str | None = None, enum: bool = False
) -> Column:
    """Return a column by the name of its type, its modifier, and for an array the name of its elements' type.

    >>> postgres_column("price", "numeric", 655366).type, postgres_column("who", "uuid").type
    (Decimal128Type(decimal128(10, 2)), DataType(string))
    """
    if element is not None:
        if element in _PLAIN:
            return Column(name, pa.list_(_PLAIN[element]), kind)
        return Column(name, pa.list_(pa.string()), kind, "CAST({} AS text[])")
    if kind in _PLAIN:
        return Column(name, _PLAIN[kind], kind)
    if kind == "oid":
        return Column(name, pa.int64(), kind, "CAST({} AS int8)")
    if kind == "money":
        return Column(name, pa.decimal128(19, 2), kind, "CAST(CAST({} AS numeric(19, 2)) AS text)", pa.string())
    if kind == "numeric":
        exact = _decimal(modifier)
        return Column(name, exact or pa.string(), kind, "CAST({} AS text)", pa.string() if exact else None)
    return Column(name, pa.string(), kind, "{}" if enum else "CAST({} AS text)")


def fits_watermark(kind: str, watermark_type: str) -> bool:
    """Return whether a column of this type holds watermarks of that one.

    PostgreSQL would compare more, by the zone of its session: with other rows for another session.

    >>> fits_watermark("timestamptz", "timestamptz"), fits_watermark("timestamptz", "timestamp")
    (True, False)
    """
    if watermark_type in _TIMES:
        return kind in _TIMES[watermark_type]
    is_text = kind in ("text", "varchar", "bpchar", "name")
    return is_text if watermark_type == "text" else kind in _NUMBERS


def watermark_type_of(kind: str) -> str:
    """Return the watermark type that fits columns of this type.

    >>> watermark_type_of("timestamptz"), watermark_type_of("int8")
    ('timestamptz', 'epoch-seconds')
    """
    if kind in _TIMES:
        return kind
    return "epoch-seconds" if kind in _NUMBERS else "text"


def _decimal(modifier: int) -> pa.DataType | None:
    if modifier < 4:
        return None
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    scale = scale - 0x800 if scale >= 0x400 else scale
    # numeric(2, -3) has five digits before the point, numeric(3, 5) five behind it.
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    return pa.decimal128(precision, scale) if precision <= MOST_DIGITS else None
