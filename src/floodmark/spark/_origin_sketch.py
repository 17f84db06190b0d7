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
from floodmark.spark._settings import MOST_ORIGINS

_MOST_MANTISSA: Final = 1 << 53
_ENTRY: Final = struct.Struct("<Qdx")
# The header is one word, with a second for the count if there are several entries, and a third if it is an estimate.
_ESTIMATED: Final = 3
_COUNTED: Final = 2
_IS_EMPTY: Final = 1 << 2
_WORD: Final = 8


def origin_key(per: tuple[str, ...]) -> Column:
    """Return the number that stands for a row's origin: 64 bits, different for different origins."""
    columns = [column_of(part) for part in per]
    if len(columns) > 1:
        # Spark's hash passes over nulls: without these, (null, a) would be the same origin as (a, null).
        columns += [column.isNull() for column in columns]
    return F.xxhash64(*columns)


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


def hash_of(key: int) -> int:
    """Return the hash under which a sketch keeps a key: MurmurHash3 of its eight bytes, without the last bit.

    >>> hash_of(5) == 1498732507761423037
    True
    """
    word = _rotated(key * _FACTOR_1 & _ALL, 31) * _FACTOR_2 & _ALL
    first = (_SEED ^ word ^ _WORD) + (_SEED ^ _WORD) & _ALL
    second = first + (_SEED ^ _WORD) & _ALL
    return (_mixed(first) + _mixed(second) & _ALL) >> 1


_ALL: Final = (1 << 64) - 1
_SEED: Final = 9001
_FACTOR_1: Final = 0x87C37B91114253D5
_FACTOR_2: Final = 0x4CF5AD432745937F


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _ALL


def _mixed(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _ALL
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _ALL
    return word ^ word >> 33


def _exact(number: float) -> int:
    """Return a time that is not later than the one meant: beyond the year 2255 a double has no single microseconds."""
    whole = int(number)
    return whole if abs(whole) <= _MOST_MANTISSA else whole - 64
