"""Rows that must not be written. They end Spark's job, before anything of their batch is seen."""

import re
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from floodmark.errors import SinkRowRefused
from floodmark.spark._columns import column_of

DIFF: Final = "_diff"
"""The column that says how often a row is to be written; below 0 it takes back what was."""
_REFUSED: Final = "floodmark refuses: "
_NO_KEY: Final = "no key"
_TAKEN_BACK: Final = "taken back"
_TOO_EARLY: Final = "too early: "


def diff_of_row() -> Column:
    """Return how often a row is to be written, if there is a column that says so."""
    return F.coalesce(column_of(DIFF).cast("int"), F.lit(1))


def as_often_as_told() -> Column:
    """Return a column of which there is one row for each time a row is to be appended; none is taken back."""
    diff = diff_of_row()
    times = F.when(diff < 0, _refuse(F.lit(_TAKEN_BACK))).otherwise(F.array_repeat(F.lit(1), diff))
    return F.explode(times)


def with_key(key: Column) -> Column:
    """Return a key, where there must be one."""
    return F.when(key.isNull(), _refuse(F.lit(_NO_KEY))).otherwise(key)


def unless_early(column: Column, time: Column, key: str, told: int) -> Column:
    """Return a column of rows whose time, for a time key, is not before what readers were told."""
    micros = F.unix_micros(time)
    why = F.concat(F.lit(f"{_TOO_EARLY}{told} {key} "), micros.cast("string"))
    return F.when(micros < told, _refuse(why)).otherwise(column)


def refused(message: str, sink: str) -> SinkRowRefused | None:
    """Return the error for the row that has ended Spark's job, by what Spark says; None if it was something else."""
    found = re.search(rf"{_REFUSED}(?P<why>[^\n;]*);", message)
    if found is None:
        return None
    why = found["why"]
    if why == _NO_KEY:
        fact, rule = "A row has no key.", "An upsert takes the place of what had its key."
        remedy = "Leave such rows out."
    elif why == _TAKEN_BACK:
        fact, rule = f"A row is to be taken back: its {DIFF} is below 0.", "What was appended stays."
        remedy = "Write with mode='upsert' and a key, or leave such rows out."
    else:
        told, key, time = why.removeprefix(_TOO_EARLY).split(" ")
        fact = f"A row has the time {time} for {key!r}, and readers were told that none before {told} comes."
        rule = "What a sink says of time holds for all windows that come later."
        remedy = "Give the sink a `lag`: as much as the times of its rows are behind the watermark of the query."
    return SinkRowRefused(f"The sink {sink!r}: {fact}", rule=rule, remedy=remedy, sink=sink)


def _refuse(why: Column) -> Column:
    return F.raise_error(F.concat(F.lit(_REFUSED), why, F.lit(";")))
