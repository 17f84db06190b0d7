"""The rows of a batch as records: keys and values as bytes, made by Spark, and the rows that must not be written.

A row that is refused ends Spark's job before anything of its batch becomes visible.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegralType, StringType, StructType, TimestampType

from floodmark.errors import InvalidOption, SinkRowRefused
from floodmark.spark.columns import column_of, require_field

WriteMode = Literal["append", "upsert"]

TS_COLUMN: Final = "_ts"
_SOURCE_COLUMNS: Final = ("_segment", "_offset", TS_COLUMN, "_w", "_bad")
_RECORD_COLUMNS: Final = ("key", "value", "headers")
_JSON_OPTIONS: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How the rows of a DataFrame become records."""

    mode: WriteMode
    key: tuple[str, ...]
    """The columns that are the key; none for rows without one."""
    is_bytes_key: bool
    data: tuple[str, ...]
    """The columns of which the value is made as JSON; none where `value` is there already."""
    has_diff: bool
    has_ts: bool
    has_headers: bool
    times: tuple[tuple[str, str], ...] = ()
    """Time keys, and the expressions of their times."""

    @classmethod
    def of(
        cls,
        schema: StructType,
        mode: WriteMode = "append",
        key: str | Sequence[str] | None = None,
        times: Mapping[str, str] | None = None,
    ) -> "RowFormat":
        """Return the form for rows of a schema, or refuse it."""
        names = {field.name for field in schema.fields}
        told = [field.name for field in schema.fields if is_data_column(field.name)]
        is_raw = set(told) <= set(_RECORD_COLUMNS) and "value" in told and _is_bytes(schema, "value")
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        if is_raw and not keys and "key" in told:
            keys = ("key",)
        for name in keys:
            require_field(schema.fields, name, "key")
        if DIFF_COLUMN in names and not isinstance(schema[DIFF_COLUMN].dataType, IntegralType):
            raise InvalidOption(
                f"The column {DIFF_COLUMN} has the type {schema[DIFF_COLUMN].dataType.simpleString()}.",
                rule="It says how often a row is written, as a whole number.",
                remedy="Cast it, or name it otherwise.",
                option=DIFF_COLUMN,
            )
        if mode == "upsert" and not keys:
            raise InvalidOption(
                "No key is named for a sink that upserts.",
                rule="A row takes the place of the one that had its key.",
                remedy="Name its columns, such as key='id'.",
                option="key",
            )
        return cls(
            mode=mode,
            key=keys,
            is_bytes_key=len(keys) == 1 and _is_bytes(schema, keys[0]),
            data=() if is_raw else tuple(told),
            has_diff=DIFF_COLUMN in names,
            has_ts=TS_COLUMN in names and isinstance(schema[TS_COLUMN].dataType, TimestampType),
            has_headers=is_raw and "headers" in told,
            times=tuple(sorted((times or {}).items())),
        )

    def records(
        self,
        df: DataFrame,
        ts: int,
        *,
        after: int | None = None,
        ordered: bool = False,
        told: Mapping[str, int] | None = None,
    ) -> DataFrame:
        """Return the rows as records: key, value, ts, and headers if there are any.

        Rows without a timestamp of their own get `ts`. Those up to `after` are left out. If `ordered`, and in upserts,
        they come in the order of their timestamps, what is taken back before what takes its place. One that must not
        be written, or is before what was `told` of time, ends Spark's job: see `parse_refusal`.
        """
        value = column_of("value").cast("binary") if not self.data else _as_json(self.data)
        key = self.key_column()
        stamp = F.unix_micros(column_of(TS_COLUMN)) if self.has_ts else F.lit(ts).cast("long")
        columns = [stamp.alias("ts"), *([column_of("headers")] if self.has_headers else ())]
        if self.mode == "upsert":
            key = refuse_missing_key(key)
        for name, known in sorted((told or {}).items()):
            value = refuse_early(value, F.expr(dict(self.times)[name]), name, known)
        if not self.has_diff:
            found = df.select(key.alias("key"), value.alias("value"), *columns)
        elif self.mode == "upsert":
            diff = row_diff()
            columns.append(diff.alias("diff"))
            found = df.select(key.alias("key"), F.when(diff > 0, value).alias("value"), *columns).where("diff != 0")
        else:
            found = df.select(key.alias("key"), value.alias("value"), *columns, repeat_by_diff().alias("diff"))
        if after is not None:
            found = found.where(F.col("ts") > after)
        if ordered or (self.mode == "upsert" and (self.has_diff or self.has_ts)):
            # One task, and not a sort over all of them, for which Spark would read the batch twice.
            found = found.repartition(1).sortWithinPartitions("ts", *(["diff"] if self.has_diff else ()))
        return found.drop("diff")

    def key_column(self) -> Column:
        """Return the keys of rows, as bytes."""
        if not self.key:
            return F.lit(None).cast("binary")
        if len(self.key) > 1:
            return _as_json(self.key)
        key = column_of(self.key[0])
        # Numbers are written as text: as bytes they would be as Spark keeps them.
        return key.cast("binary") if self.is_bytes_key else key.cast("string").cast("binary")


def is_data_column(name: str) -> bool:
    """Return whether a column is of the data, and none that tells where a row comes from.

    >>> is_data_column("item"), is_data_column("_ts"), is_data_column("_kafka_offset")
    (True, False, False)
    """
    return name not in (*_SOURCE_COLUMNS, DIFF_COLUMN) and not name.startswith("_kafka_")


def _as_json(names: Sequence[str]) -> Column:
    return F.to_json(F.struct(*(column_of(name) for name in names)), _JSON_OPTIONS).cast("binary")


def _is_bytes(schema: StructType, name: str) -> bool:
    return isinstance(schema[name].dataType, (BinaryType, StringType))


DIFF_COLUMN: Final = "_diff"
"""The column that says how often a row is to be written; below 0 it takes back what was."""
_REFUSED: Final = "floodmark refuses: "
_NO_KEY: Final = "no key"
_RETRACTED: Final = "taken back"
_TOO_EARLY: Final = "too early: "


def row_diff() -> Column:
    """Return how often a row is to be written, if there is a column that says so."""
    return F.coalesce(column_of(DIFF_COLUMN).cast("int"), F.lit(1))


def repeat_by_diff() -> Column:
    """Return a column of which there is one row for each time a row is to be appended; none is taken back."""
    diff = row_diff()
    times = F.when(diff < 0, _raise_refusal(F.lit(_RETRACTED))).otherwise(F.array_repeat(F.lit(1), diff))
    return F.explode(times)


def refuse_missing_key(key: Column) -> Column:
    """Return a key, where there must be one."""
    return F.when(key.isNull(), _raise_refusal(F.lit(_NO_KEY))).otherwise(key)


def refuse_early(column: Column, time: Column, key: str, told: int) -> Column:
    """Return a column of rows whose time, for a time key, is not before what readers were told."""
    micros = F.unix_micros(time)
    why = F.concat(F.lit(f"{_TOO_EARLY}{told} {key} "), micros.cast("string"))
    return F.when(micros < told, _raise_refusal(why)).otherwise(column)


def parse_refusal(message: str, sink: str) -> SinkRowRefused | None:
    """Return the error for the row that has ended Spark's job, by what Spark says; None if it was something else."""
    found = re.search(rf"{_REFUSED}(?P<why>[^\n;]*);", message)
    if found is None:
        return None
    why = found["why"]
    if why == _NO_KEY:
        fact, rule = "A row has no key.", "An upsert takes the place of what had its key."
        remedy = "Leave such rows out."
    elif why == _RETRACTED:
        fact, rule = f"A row is to be taken back: its {DIFF_COLUMN} is below 0.", "What was appended stays."
        remedy = "Write with mode='upsert' and a key, or leave such rows out."
    else:
        told, key, time = why.removeprefix(_TOO_EARLY).split(" ")
        fact = f"A row has the time {time} for {key!r}, and readers were told that none before {told} comes."
        rule = "What a sink says of time holds for all windows that come later."
        remedy = "Give the sink a `lag`: as much as the times of its rows are behind the watermark of the query."
    return SinkRowRefused(f"The sink {sink!r}: {fact}", rule=rule, remedy=remedy, sink=sink)


def _raise_refusal(why: Column) -> Column:
    return F.raise_error(F.concat(F.lit(_REFUSED), why, F.lit(";")))
