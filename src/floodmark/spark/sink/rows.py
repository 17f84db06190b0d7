"""The rows of a batch as records (keys and values as bytes), and the refusal of rows that must not be written.

A refused row fails Spark's job before any row of its batch becomes visible.
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
    """The columns of the key; empty for records without a key."""
    is_bytes_key: bool
    data: tuple[str, ...]
    """The columns of the value, which is JSON; empty if the DataFrame has a column `value`."""
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
        """Return the format of rows with this schema."""
        names = {field.name for field in schema.fields}
        data = [field.name for field in schema.fields if is_data_column(field.name)]
        is_raw = set(data) <= set(_RECORD_COLUMNS) and "value" in data and _is_bytes(schema, "value")
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        if is_raw and not keys and "key" in data:
            keys = ("key",)
        for name in keys:
            require_field(schema.fields, name, "key")
        if DIFF_COLUMN in names and not isinstance(schema[DIFF_COLUMN].dataType, IntegralType):
            raise InvalidOption(
                f"The column {DIFF_COLUMN} has the type {schema[DIFF_COLUMN].dataType.simpleString()}.",
                rule="It must be a whole number: how many times the row is written.",
                remedy=f"Cast it to INT, or rename it: df.withColumnRenamed({DIFF_COLUMN!r}, ...).",
                option=DIFF_COLUMN,
            )
        if mode == "upsert" and not keys:
            raise InvalidOption(
                "No key is named for a sink with mode='upsert'.",
                rule="A row replaces the row with the same key.",
                remedy="Pass the columns of the key, such as key='id'.",
                option="key",
            )
        return cls(
            mode=mode,
            key=keys,
            is_bytes_key=len(keys) == 1 and _is_bytes(schema, keys[0]),
            data=() if is_raw else tuple(data),
            has_diff=DIFF_COLUMN in names,
            has_ts=TS_COLUMN in names and isinstance(schema[TS_COLUMN].dataType, TimestampType),
            has_headers=is_raw and "headers" in data,
            times=tuple(sorted((times or {}).items())),
        )

    @property
    def routing(self) -> tuple[str, ...]:
        """The columns by which rows are distributed to partitions: the key, or those of the value."""
        return self.key or self.data or ("value",)

    def records(
        self,
        df: DataFrame,
        ts: int,
        *,
        after: int | None = None,
        ordered: bool = False,
        published: Mapping[str, int] | None = None,
    ) -> DataFrame:
        """Return the rows as records: key, value, ts, and headers if there are any.

        Rows without `_ts` get `ts`; rows up to `after` are left out. If `ordered`, and in upserts, records are sorted
        by timestamp, deletions first. A row that must not be written, or is earlier than a `published` watermark, fails
        Spark's job; `parse_refusal` makes an error of that.
        """
        value = column_of("value").cast("binary") if not self.data else _as_json(self.data)
        key = self.key_column()
        stamp = F.unix_micros(column_of(TS_COLUMN)) if self.has_ts else F.lit(ts).cast("long")
        columns = [stamp.alias("ts"), *([column_of("headers")] if self.has_headers else ())]
        if self.mode == "upsert":
            key = refuse_missing_key(key)
        for name, watermark in sorted((published or {}).items()):
            value = refuse_early(value, F.expr(dict(self.times)[name]), name, watermark)
        if not self.has_diff:
            records = df.select(key.alias("key"), value.alias("value"), *columns)
        elif self.mode == "upsert":
            diff = row_diff()
            columns.append(diff.alias("diff"))
            records = df.select(key.alias("key"), F.when(diff > 0, value).alias("value"), *columns).where("diff != 0")
        else:
            records = df.select(key.alias("key"), value.alias("value"), *columns, repeat_by_diff().alias("diff"))
        if after is not None:
            records = records.where(F.col("ts") > after)
        if ordered or (self.mode == "upsert" and (self.has_diff or self.has_ts)):
            # Sort in one task: for a global sort Spark would read the batch twice.
            records = records.repartition(1).sortWithinPartitions("ts", *(["diff"] if self.has_diff else ()))
        return records.drop("diff")

    def key_column(self) -> Column:
        """Return the column with the keys of rows, as bytes."""
        if not self.key:
            return F.lit(None).cast("binary")
        if len(self.key) > 1:
            return _as_json(self.key)
        key = column_of(self.key[0])
        # Numbers become text: cast to binary they would be Spark's internal bytes.
        return key.cast("binary") if self.is_bytes_key else key.cast("string").cast("binary")


def is_data_column(name: str) -> bool:
    """Return whether a column is data, and not one that a source adds.

    >>> is_data_column("item"), is_data_column("_ts"), is_data_column("_kafka_offset")
    (True, False, False)
    """
    return name not in (*_SOURCE_COLUMNS, DIFF_COLUMN) and not name.startswith("_kafka_")


def _as_json(names: Sequence[str]) -> Column:
    return F.to_json(F.struct(*(column_of(name) for name in names)), _JSON_OPTIONS).cast("binary")


def _is_bytes(schema: StructType, name: str) -> bool:
    return isinstance(schema[name].dataType, (BinaryType, StringType))


DIFF_COLUMN: Final = "_diff"
"""The column with the number of times a row is written; below 0 it deletes the row."""
_REFUSED: Final = "floodmark refuses: "
_NO_KEY: Final = "no key"
_RETRACTED: Final = "taken back"
_TOO_EARLY: Final = "too early: "


def row_diff() -> Column:
    """Return how many times a row is written; a null counts as 1."""
    return F.coalesce(column_of(DIFF_COLUMN).cast("int"), F.lit(1))


def repeat_by_diff() -> Column:
    """Return a column that repeats each row as often as it is to be appended; a negative number is refused."""
    diff = row_diff()
    times = F.when(diff < 0, _raise_refusal(F.lit(_RETRACTED))).otherwise(F.array_repeat(F.lit(1), diff))
    return F.explode(times)


def refuse_missing_key(key: Column) -> Column:
    """Return a key; a null is refused."""
    return F.when(key.isNull(), _raise_refusal(F.lit(_NO_KEY))).otherwise(key)


def refuse_early(column: Column, time: Column, key: str, watermark: int) -> Column:
    """Return a column; a row whose time is before the published watermark of its time key is refused."""
    micros = F.unix_micros(time)
    why = F.concat(F.lit(f"{_TOO_EARLY}{watermark} {key} "), micros.cast("string"))
    return F.when(micros < watermark, _raise_refusal(why)).otherwise(column)


def parse_refusal(message: str, sink: str) -> SinkRowRefused | None:
    """Return the error for a refused row, from the message of Spark's exception; None for any other exception."""
    match = re.search(rf"{_REFUSED}(?P<why>[^\n;]*);", message)
    if match is None:
        return None
    why = match["why"]
    if why == _NO_KEY:
        fact, rule = "A row has no key.", "With mode='upsert' a row replaces the row with the same key."
        remedy = "Filter out rows without a key, such as df.where('id IS NOT NULL')."
    elif why == _RETRACTED:
        fact, rule = f"A row has a {DIFF_COLUMN} below 0.", "With mode='append' rows cannot be deleted."
        remedy = f"Write with mode='upsert' and a key, or filter out such rows: df.where('{DIFF_COLUMN} >= 0')."
    else:
        watermark, key, time = why.removeprefix(_TOO_EARLY).split(" ")
        fact = f"A row has the time {time} for {key!r}, and the published watermark is {watermark}."
        rule = "A sink must not write rows before the watermark that its readers already have."
        remedy = "Give the sink a `lag`: how far the times of its rows are behind the watermark of the query."
    return SinkRowRefused(f"The sink {sink!r}: {fact}", rule=rule, remedy=remedy, sink=sink)


def _raise_refusal(why: Column) -> Column:
    return F.raise_error(F.concat(F.lit(_REFUSED), why, F.lit(";")))
