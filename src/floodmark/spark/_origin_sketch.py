"""One number for each origin of a micro-batch, found in one pass and without a shuffle.

Spark's tuple sketches keep a number for every distinct key they meet: its largest value, its smallest, or a sum. As
long as there are no more keys than the sketch has places nothing is estimated, and each number is exact. What Spark
returns is the published binary form of such a sketch, in which a key is only a hash; this is the reader of that form.
"""

import struct
from typing import Final, Literal

from pyspark.sql import Column
from pyspark.sql import functions as F

from floodmark.spark._columns import column_of
from floodmark.spark._hashes import sketch_hash, spark_hash
from floodmark.spark._settings import MOST_ORIGINS

# Neither is in a name that anybody means.
_NULL, _BETWEEN = "\0", "\x1f"
_MOST_MANTISSA: Final = 1 << 53
_ENTRY: Final = struct.Struct("<Qdx")
# The header is one word, with a second for the count if there are several entries, and a third if it is an estimate.
_ESTIMATED: Final = 3
_IS_EMPTY: Final = 1 << 2
_WORD: Final = 8


def origin_name(per: tuple[str, ...]) -> Column:
    """Return the text that stands for a row's origin: different for different origins, `shown_name` is for people."""
    parts = [F.coalesce(column_of(part).cast("string"), F.lit(_NULL)) for part in per]
    return parts[0] if len(parts) == 1 else F.concat_ws(_BETWEEN, *parts)


def origin_key(name: Column) -> Column:
    """Return the number of 64 bits that stands for a name."""
    return F.xxhash64(name)


def origin_id(name: str) -> str:
    """Return what an origin of this name is called in a sketch.

    >>> origin_id("orders-1")
    '73af98f0c5541de3'
    """
    return as_id(sketch_hash(spark_hash(name)))


def as_id(hashed: int) -> str:
    """Return a hash of a sketch as text."""
    return format(hashed, "016x")


def shown_name(name: str) -> str:
    r"""Return a name as a person writes it.

    >>> shown_name("orders\x1f3"), shown_name("\0")
    ('orders, 3', 'null')
    """
    return ", ".join("null" if part == _NULL else part for part in name.split(_BETWEEN))


def by_origin(key: Column, number: Column, mode: Literal["max", "min", "sum"]) -> Column:
    """Return the aggregate of `number`, a double, for each `key`; rows where either is null do not count."""
    sketch = F.tuple_sketch_agg_double(key, number, F.lit(MOST_ORIGINS.bit_length() - 1), F.lit(mode))
    # As text, because Connect has no other form for bytes in what was observed.
    return F.hex(sketch)


def read_sketch(text: str) -> dict[int, int] | None:
    """Return {hash: number}, or None if there were more keys than places, so that some are missing.

    >>> read_sketch("01030901000ACC9317C11D528507017B000000000000144002")
    {8863373810831573271: 5}
    >>> read_sketch("01030901000ECC93")
    {}
    """
    sketch = bytes.fromhex(text)
    words, flags = sketch[0], sketch[5]
    if words >= _ESTIMATED:
        return None
    if flags & _IS_EMPTY:
        return {}
    return {key: _exact(number) for key, number in _ENTRY.iter_unpack(sketch[words * _WORD :])}


def _exact(number: float) -> int:
    """Return a time that is not later than the one meant: beyond the year 2255 a double has no single microseconds."""
    whole = int(number)
    return whole if abs(whole) <= _MOST_MANTISSA else whole - 64
