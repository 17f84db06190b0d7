"""The rows of a batch as records: keys and values as bytes, which Spark makes of the columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegralType, StringType, StructType, TimestampType

from floodmark.errors import InvalidOption
from floodmark.spark._columns import column_of, known_field
from floodmark.spark._row_refusals import DIFF, as_often_as_told, diff_of_row, unless_early, with_key

WriteMode = Literal["append", "upsert"]

TS: Final = "_ts"
_OF_THE_SOURCE: Final = ("_segment", "_offset", TS, "_w", "_bad")
_OF_RECORDS: Final = ("key", "value", "headers")
_JSON: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX", "ignoreNullFields": "false"}


@dataclass(frozen=True, slots=True)
class RowForm:
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
    ) -> "RowForm":
        """Return the form for rows of a schema, or refuse it."""
        names = {field.name for field in schema.fields}
        told = [field.name for field in schema.fields if is_data(field.name)]
        is_raw = set(told) <= set(_OF_RECORDS) and "value" in told and _is_bytes(schema, "value")
        keys = (key,) if isinstance(key, str) else tuple(key or ())
        if is_raw and not keys and "key" in told:
            keys = ("key",)
        for name in keys:
            known_field(schema.fields, name, "key")
        if DIFF in names and not isinstance(schema[DIFF].dataType, IntegralType):
            raise InvalidOption(
                f"The column {DIFF} has the type {schema[DIFF].dataType.simpleString()}.",
                rule="It says how often a row is written, as a whole number.",
                remedy="Cast it, or name it otherwise.",
                option=DIFF,
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
            has_diff=DIFF in names,
            has_ts=TS in names and isinstance(schema[TS].dataType, TimestampType),
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
        be written, or is before what was `told` of time, ends Spark's job: see `refused`.
        """
        value = column_of("value").cast("binary") if not self.data else _as_json(self.data)
        key = self.key_column()
        stamp = F.unix_micros(column_of(TS)) if self.has_ts else F.lit(ts).cast("long")
        columns = [stamp.alias("ts"), *([column_of("headers")] if self.has_headers else ())]
        if self.mode == "upsert":
            key = with_key(key)
        for name, known in sorted((told or {}).items()):
            value = unless_early(value, F.expr(dict(self.times)[name]), name, known)
        if not self.has_diff:
            found = df.select(key.alias("key"), value.alias("value"), *columns)
        elif self.mode == "upsert":
            diff = diff_of_row()
            columns.append(diff.alias("diff"))
            found = df.select(key.alias("key"), F.when(diff > 0, value).alias("value"), *columns).where("diff != 0")
        else:
            found = df.select(key.alias("key"), value.alias("value"), *columns, as_often_as_told().alias("diff"))
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


def is_data(name: str) -> bool:
    """Return whether a column is of the data, and none that tells where a row comes from.

    >>> is_data("item"), is_data("_ts"), is_data("_kafka_offset")
    (True, False, False)
    """
    return name not in (*_OF_THE_SOURCE, DIFF) and not name.startswith("_kafka_")


def _as_json(names: Sequence[str]) -> Column:
    return F.to_json(F.struct(*(column_of(name) for name in names)), _JSON).cast("binary")


def _is_bytes(schema: StructType, name: str) -> bool:
    return isinstance(schema[name].dataType, (BinaryType, StringType))
