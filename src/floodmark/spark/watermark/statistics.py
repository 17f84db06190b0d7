"""Statistics of one micro-batch: per origin the newest event time, and which rows were late.

They are observed in one pass and without a shuffle, by Spark's tuple sketches, which keep one number (maximum, minimum
or sum) per distinct key. The numbers are exact as long as the sketch has room for all keys. Spark returns the published
binary format of a sketch, in which a key is only a hash. This module reads that format, and computes the hashes as
Spark and its sketches do.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from floodmark.spark.columns import column_of
from floodmark.spark.watermark.chain import MOST_ORIGINS, WatermarkSettings

ONLY_ORIGIN: Final = "all rows"
"""The name of the origin if `per` is empty: all rows have the same."""

_TIME, _ORIGIN, _NAME, _LATE_ORIGIN = (f"__floodmark_{part}" for part in ("time", "origin", "name", "late_origin"))


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The newest time and the name of each origin, and the rows that were late or too far in the future.

    Late rows have a count and an oldest time per origin. `has_all_origins` is False if the sketch overflowed: some
    origins are missing then.
    """

    newest: dict[str, int]
    names: dict[str, str] = field(default_factory=dict)
    future_rows: int = 0
    newest_future: int | None = None
    late_rows: dict[str, int] | None = None
    oldest_late: dict[str, int] | None = None
    has_all_origins: bool = True


def observe_statistics(
    df: DataFrame, settings: WatermarkSettings, name: str, is_late: Column | None = None
) -> DataFrame:
    """Return the same rows; Spark reports their statistics under `name` after each batch.

    The result has additional columns, which the caller drops when it selects columns.
    """
    micros = F.unix_micros(column_of(settings.column))
    countable, observed = micros, list[Column]()
    # Each observed metric costs about ten nanoseconds per row, so only those that the settings need are observed.
    if settings.future is not None:
        is_future = micros > F.unix_micros(F.current_timestamp()) + settings.future
        observed.append(F.count(F.when(is_future, 1)).alias("future_rows"))
        observed.append(F.max(F.when(is_future, micros)).alias("newest_future"))
        countable = F.when(~is_future, micros)
    if not settings.per:
        observed.append(F.max(countable).alias("newest"))
        if is_late is not None:
            observed.append(F.count(F.when(is_late, 1)).alias("late_rows"))
            observed.append(F.min(F.when(is_late, micros)).alias("oldest_late"))
        return df.observe(name, *observed)
    # As columns, so that Spark compiles them: inside an aggregate they would be interpreted row by row.
    prepared = (
        df.withColumn(_NAME, origin_name(settings.per))
        .withColumn(_ORIGIN, origin_key(F.col(_NAME)))
        .withColumn(_TIME, countable.cast("double"))
    )
    observed.append(aggregate_by_origin(F.col(_ORIGIN), F.col(_TIME), "max").alias("newest"))
    observed.append(F.collect_set(_NAME).alias("names"))
    if is_late is not None:
        prepared = prepared.withColumn(_LATE_ORIGIN, F.when(is_late, F.col(_ORIGIN)))
        observed.append(aggregate_by_origin(F.col(_LATE_ORIGIN), F.lit(1.0), "sum").alias("late_rows"))
        observed.append(aggregate_by_origin(F.col(_LATE_ORIGIN), F.col(_TIME), "min").alias("oldest_late"))
    return prepared.observe(name, *observed)


def read_statistics(row: Any, settings: WatermarkSettings) -> BatchStatistics:
    """Return the statistics of one batch, as Spark has reported them."""
    values: dict[str, Any] = row.asDict()
    by_origin = _numbers_by_origin if settings.per else _single_origin
    newest = by_origin(values["newest"])
    return BatchStatistics(
        newest=newest or {},
        names=_origin_names(values.get("names", ())),
        future_rows=values.get("future_rows", 0),
        newest_future=values.get("newest_future"),
        late_rows=by_origin(values["late_rows"]) if "late_rows" in values else None,
        oldest_late=by_origin(values["oldest_late"]) if "oldest_late" in values else None,
        has_all_origins=newest is not None,
    )


def _single_origin(number: int | None) -> dict[str, int] | None:
    return {} if number is None else {ONLY_ORIGIN: number}


def _numbers_by_origin(sketch: str) -> dict[str, int] | None:
    numbers = read_sketch(sketch)
    return None if numbers is None else {format_hash(key): number for key, number in numbers.items()}


def _origin_names(names: Iterable[str]) -> dict[str, str]:
    return {origin_id(name): display_name(name) for name in names}


# Control characters, which do not occur in ordinary names.
_NULL_PART, _PART_SEPARATOR = "\0", "\x1f"
_MOST_MANTISSA: Final = 1 << 53
_ENTRY: Final = struct.Struct("<Qdx")
# The header is one word, with a second for the count if there are several entries, and a third if it is an estimate.
_ESTIMATED: Final = 3
_IS_EMPTY: Final = 1 << 2
_WORD: Final = 8


def origin_name(per: tuple[str, ...]) -> Column:
    """Return the text that identifies a row's origin; `display_name` makes it readable."""
    parts = [F.coalesce(column_of(part).cast("string"), F.lit(_NULL_PART)) for part in per]
    return parts[0] if len(parts) == 1 else F.concat_ws(_PART_SEPARATOR, *parts)


def origin_text(parts: Sequence[object]) -> str | None:
    r"""Return what `origin_name` gives for these values, or None if that cannot be told.

    >>> origin_text(["orders", 3]), origin_text([None]), origin_text([True]), origin_text([1.5])
    ('orders\x1f3', '\x00', 'true', None)
    """
    texts = []
    for part in parts:
        if isinstance(part, bool):
            texts.append(str(part).lower())
        elif part is None or isinstance(part, str | int):
            texts.append(_NULL_PART if part is None else str(part))
        else:
            # Spark's text of other types depends on its settings.
            return None
    return _PART_SEPARATOR.join(texts)


def origin_key(name: Column) -> Column:
    """Return the 64-bit hash of an origin name."""
    return F.xxhash64(name)


def origin_id(name: str) -> str:
    """Return the id of an origin: the hash of its name in a sketch, as text.

    >>> origin_id("orders-1")
    '73af98f0c5541de3'
    """
    return format_hash(sketch_hash(spark_xxhash64(name)))


def format_hash(hashed: int) -> str:
    """Return a hash as text of 16 hexadecimal digits."""
    return format(hashed, "016x")


def display_name(name: str) -> str:
    r"""Return an origin name in readable form.

    >>> display_name("orders\x1f3"), display_name("\0")
    ('orders, 3', 'null')
    """
    return ", ".join("null" if part == _NULL_PART else part for part in name.split(_PART_SEPARATOR))


def aggregate_by_origin(key: Column, number: Column, mode: Literal["max", "min", "sum"]) -> Column:
    """Return the aggregate of `number`, a double, for each `key`; rows where either is null are ignored."""
    sketch = F.tuple_sketch_agg_double(key, number, F.lit(MOST_ORIGINS.bit_length() - 1), F.lit(mode))
    # As text, because Spark Connect does not support binary values in observed metrics.
    return F.hex(sketch)


def read_sketch(text: str) -> dict[int, int] | None:
    """Return {hash: number}, or None if the sketch had no room for all keys.

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
    return {key: _exact_micros(number) for key, number in _ENTRY.iter_unpack(sketch[words * _WORD :])}


def _exact_micros(number: float) -> int:
    """Return a time not later than the original: after the year 2255 a double cannot represent every microsecond."""
    whole = int(number)
    return whole if abs(whole) <= _MOST_MANTISSA else whole - 64


_MASK_64: Final = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5,
)  # fmt: skip
_SPARK_SEED: Final = 42
_SKETCH_SEED: Final = 9001
_BLOCK: Final = 32


def spark_xxhash64(text: str) -> int:
    """Return Spark's `xxhash64` of a string, as an unsigned number.

    >>> spark_xxhash64("Spark") == -4294468057691064905 % 2**64
    True
    """
    data = text.encode()
    length, index = len(data), 0
    if length >= _BLOCK:
        lanes = [_SPARK_SEED + _P1 + _P2, _SPARK_SEED + _P2, _SPARK_SEED, _SPARK_SEED - _P1]
        while index + _BLOCK <= length:
            words = (int.from_bytes(data[at : at + 8], "little") for at in range(index, index + _BLOCK, 8))
            lanes = [_round(lane, word) for lane, word in zip(lanes, words, strict=True)]
            index += _BLOCK
        result = (
            sum(_rotate_left(lane & _MASK_64, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
            & _MASK_64
        )
        for lane in lanes:
            result = ((result ^ _round(0, lane)) * _P1 + _P4) & _MASK_64
    else:
        result = _SPARK_SEED + _P5
    result = (result + length) & _MASK_64
    while index + 8 <= length:
        result ^= _round(0, int.from_bytes(data[index : index + 8], "little"))
        result, index = (_rotate_left(result, 27) * _P1 + _P4) & _MASK_64, index + 8
    if index + 4 <= length:
        result ^= int.from_bytes(data[index : index + 4], "little") * _P1 & _MASK_64
        result, index = (_rotate_left(result, 23) * _P2 + _P3) & _MASK_64, index + 4
    for byte in data[index:]:
        result = _rotate_left(result ^ byte * _P5 & _MASK_64, 11) * _P1 & _MASK_64
    result = (result ^ result >> 33) * _P2 & _MASK_64
    result = (result ^ result >> 29) * _P3 & _MASK_64
    return result ^ result >> 32


def sketch_hash(key: int) -> int:
    """Return the hash by which a sketch stores a 64-bit key: its MurmurHash3 without the last bit.

    >>> sketch_hash(5)
    1498732507761423037
    """
    word = _rotate_left(key * 0x87C37B91114253D5 & _MASK_64, 31) * 0x4CF5AD432745937F & _MASK_64
    other = _SKETCH_SEED ^ 8
    first = (_SKETCH_SEED ^ word ^ 8) + other & _MASK_64
    return (_murmur_mix(first) + _murmur_mix(first + other & _MASK_64) & _MASK_64) >> 1


def _round(lane: int, word: int) -> int:
    return _rotate_left((lane + word * _P2) & _MASK_64, 31) * _P1 & _MASK_64


def _rotate_left(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK_64


def _murmur_mix(word: int) -> int:
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & _MASK_64
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & _MASK_64
    return word ^ word >> 33
