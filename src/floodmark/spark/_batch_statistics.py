"""What one micro-batch says about its rows: per origin, how far time has come in it, and which rows were late."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from floodmark.spark._columns import column_of
from floodmark.spark._origin_sketch import as_id, by_origin, origin_id, origin_key, origin_name, read_sketch, shown_name
from floodmark.spark._settings import WatermarkSettings

ONLY_ORIGIN: Final = "all rows"
"""The name of the origin where rows are not told apart."""

_TIME, _ORIGIN, _NAME, _LATE_ORIGIN = (f"__floodmark_{part}" for part in ("time", "origin", "name", "late_origin"))


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The newest time of each origin, names for origins, and the rows that were late or from too far in the future.

    Of late rows there is the number and the oldest time of each origin. `has_all_origins` is False where there were
    too many to count: then nothing is known of those that are missing.
    """

    newest: dict[str, int]
    names: dict[str, str] = field(default_factory=dict)
    future_rows: int = 0
    newest_future: int | None = None
    late_rows: dict[str, int] | None = None
    oldest_late: dict[str, int] | None = None
    has_all_origins: bool = True


def observe(df: DataFrame, settings: WatermarkSettings, name: str, is_late: Column | None = None) -> DataFrame:
    """Return the same rows, with their statistics reported under `name` after each batch.

    They have columns more than before, for the caller to leave out where it selects columns anyway.
    """
    micros = F.unix_micros(column_of(settings.column))
    countable, observed = micros, list[Column]()
    # Each thing observed costs some ten nanoseconds a row, so nothing is that is not asked for.
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
    # Columns first, so that they are compiled: inside an aggregate Spark would interpret them, row by row.
    helped = (
        df.withColumn(_NAME, origin_name(settings.per))
        .withColumn(_ORIGIN, origin_key(F.col(_NAME)))
        .withColumn(_TIME, countable.cast("double"))
    )
    observed.append(by_origin(F.col(_ORIGIN), F.col(_TIME), "max").alias("newest"))
    observed.append(F.collect_set(_NAME).alias("names"))
    if is_late is not None:
        helped = helped.withColumn(_LATE_ORIGIN, F.when(is_late, F.col(_ORIGIN)))
        observed.append(by_origin(F.col(_LATE_ORIGIN), F.lit(1.0), "sum").alias("late_rows"))
        observed.append(by_origin(F.col(_LATE_ORIGIN), F.col(_TIME), "min").alias("oldest_late"))
    return helped.observe(name, *observed)


def read_statistics(row: Any, settings: WatermarkSettings) -> BatchStatistics:
    """Return what was observed of one batch."""
    values: dict[str, Any] = row.asDict()
    numbers_of = _by_origin if settings.per else _of_all
    newest = numbers_of(values["newest"])
    return BatchStatistics(
        newest=newest or {},
        names=_names(values.get("names", ())),
        future_rows=values.get("future_rows", 0),
        newest_future=values.get("newest_future"),
        late_rows=numbers_of(values["late_rows"]) if "late_rows" in values else None,
        oldest_late=numbers_of(values["oldest_late"]) if "oldest_late" in values else None,
        has_all_origins=newest is not None,
    )


def _of_all(number: int | None) -> dict[str, int] | None:
    return {} if number is None else {ONLY_ORIGIN: number}


def _by_origin(sketch: str) -> dict[str, int] | None:
    numbers = read_sketch(sketch)
    return None if numbers is None else {as_id(key): number for key, number in numbers.items()}


def _names(told: Iterable[str]) -> dict[str, str]:
    return {origin_id(name): shown_name(name) for name in told}
