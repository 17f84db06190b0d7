"""What one micro-batch says about its rows: per origin, how far time has come in it.

Every row counts, and the cost is that of putting one number a row into a set: the origin's hash in the upper half,
the time in whole steps in the lower. A step is a second for rows of the last hour and some thousandth of their age
for older ones, so that the set stays small when years are read again; of those, a sample is counted to the second.
A step only ever makes a time earlier, and with it the watermark.
"""

from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from floodmark.spark._columns import column_of, quoted
from floodmark.spark._settings import WatermarkSettings

ONLY_ORIGIN: Final = "all rows"
"""The name of the origin where rows are not told apart."""

_SECOND: Final = 1_000_000
_END_OF_TIME: Final = 2**32 - 1
_NAMES_SAMPLED: Final = 1 / 16
_TIMES_SAMPLED: Final = 1 / 1024
_HELPERS: Final = tuple(f"__floodmark_{part}" for part in ("origin", "seconds", "dice", "place", "name"))
# (rows younger than this many seconds, step in seconds)
_STEPS: Final = ((3_600, 1), (86_400, 15), (30 * 86_400, 300))
_OLDEST_STEP: Final = 3_600


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The newest time of each origin, names for origins, and the rows from too far in the future."""

    newest: dict[str, int]
    names: dict[str, str]
    future_rows: int
    newest_future: int | None


def observe(df: DataFrame, settings: WatermarkSettings, name: str) -> DataFrame:
    """Return the same rows, with their statistics reported under `name` after each batch."""
    micros = F.unix_micros(column_of(settings.column))
    is_future, observed = F.lit(False), list[Column]()
    # Each thing observed costs some ten nanoseconds a row, so nothing is that is not asked for.
    if settings.future is not None:
        is_future = micros > F.unix_micros(F.current_timestamp()) + settings.future
        observed.append(F.count(F.when(is_future, 1)).alias("future_rows"))
        observed.append(F.max(F.when(is_future, micros)).alias("newest_future"))
    if not settings.per:
        return df.observe(name, F.max(F.when(~is_future, micros)).alias("newest"), *observed)
    origin, seconds, dice, place, label = (F.col(helper) for helper in _HELPERS)
    shown = F.concat_ws(", ", *(F.coalesce(column_of(part).cast("string"), F.lit("null")) for part in settings.per))
    counted = F.when(dice < _TIMES_SAMPLED, seconds).otherwise(_in_steps(seconds))
    is_countable = ~is_future & seconds.between(0, _END_OF_TIME)
    # Each stage uses what the one before has computed: written as one, Spark would hash a row once for each use.
    helped = (
        df.withColumn(_HELPERS[0], F.shiftrightunsigned(F.xxhash64(*map(column_of, settings.per)), 32))
        .withColumn(_HELPERS[1], F.expr(f"unix_micros({quoted(settings.column)}) div {_SECOND}"))
        .withColumn(_HELPERS[2], F.rand())
        .withColumn(_HELPERS[3], F.when(is_countable, F.shiftleft(origin, 32).bitwiseOR(counted)))
        .withColumn(_HELPERS[4], F.when(dice < _NAMES_SAMPLED, F.struct(origin.alias("id"), shown.alias("name"))))
    )
    sets = F.collect_set(place).alias("places"), F.collect_set(label).alias("names")
    return helped.observe(name, *sets, *observed).drop(*_HELPERS)


def read_statistics(row: Any, settings: WatermarkSettings) -> BatchStatistics:
    """Return what was observed of one batch."""
    newest: dict[str, int] = {}
    names: dict[str, str] = {}
    if not settings.per:
        if row["newest"] is not None:
            newest[ONLY_ORIGIN] = row["newest"]
    else:
        for place in row["places"]:
            # Spark's bigint has a sign, the hash in it has none.
            origin, seconds = format((place >> 32) & 0xFFFFFFFF, "08x"), place & 0xFFFFFFFF
            newest[origin] = max(seconds * _SECOND, newest.get(origin, 0))
        names = {format(entry["id"] & 0xFFFFFFFF, "08x"): entry["name"] for entry in row["names"]}
    if settings.future is None:
        return BatchStatistics(newest, names, 0, None)
    return BatchStatistics(newest, names, row["future_rows"], row["newest_future"])


def _in_steps(seconds: Column) -> Column:
    age = F.expr(f"unix_micros(current_timestamp()) div {_SECOND}") - seconds
    step = F.lit(_OLDEST_STEP)
    for younger_than, size in reversed(_STEPS):
        step = F.when(age < younger_than, F.lit(size)).otherwise(step)
    return seconds - F.pmod(seconds, step)
