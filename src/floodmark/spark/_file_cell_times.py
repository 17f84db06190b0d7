"""The times that rows of files have themselves, as moments."""

import re
from typing import Final
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, DateType, StringType, StructField, TimestampNTZType, TimestampType

from floodmark.errors import FloodmarkError, SourceFailed, SourceValueUnfit, UnsupportedFrame, WatermarkMissing
from floodmark.extract._files_walls import wall_spans
from floodmark.ingest import Range

_DAY: Final = 86_400_000_000
_CLOCK: Final = r"[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
_PLAIN: Final = rf"^\d{{4}}-\d{{2}}-\d{{2}}({_CLOCK})?$"
_ZONED: Final = rf"^\d{{4}}-\d{{2}}-\d{{2}}{_CLOCK} ?(Z|[+-]\d{{2}}(:?\d{{2}})?)$"
# Spark wants offsets with seconds before them, and with a colon.
_SHORT: Final = (
    (r"([T ]\d{2}:\d{2})( ?[Z+-])", "$1:00$2"),
    (r"([+-]\d{2})(\d{2})$", "$1:$2"),
    (r"(:.*[+-]\d{2})$", "$1:00"),
)
_QUOTED: Final = re.compile(r"'[^']*'")
_ZONE_LETTERS: Final = re.compile(r"[VzOXxZ]")
_CAUSE: Final = re.compile(r"(?:: |Caused by: )(?:[\w.$]+(?:Exception|Error): )?")
_KINDS: Final[dict[str, type[FloodmarkError]]] = {
    kind.code: kind for kind in (SourceFailed, SourceValueUnfit, WatermarkMissing)
}
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.*?)\s*SQLSTATE", re.DOTALL)


def moments(
    field: StructField, text: Column, of: Range, zone: ZoneInfo, pattern: str | None = None, *, exact: bool = True
) -> Column:
    """Return the moments of a column in microseconds: exact within a range, and outside it on the right side of it.

    NULL is what is no time. `pattern` is how texts are written, as Spark says it; by default as ISO does. What need not
    be exact, but within the range or not, costs less where clocks are set often.
    """
    kind: DataType = field.dataType
    if isinstance(kind, TimestampType):
        return F.unix_micros(text)
    if isinstance(kind, TimestampNTZType):
        return _of_walls(_wall_micros(text), of, zone, exact)
    if isinstance(kind, DateType):
        return _of_walls(F.unix_date(text).cast("bigint") * _DAY, of, zone, exact)
    if not isinstance(kind, StringType):
        raise UnsupportedFrame(
            f"The column {field.name!r} is of type {kind.simpleString()}.",
            rule="The time of a row is a timestamp, a date or an ISO text.",
            remedy="Name another column, or give it such a type in the schema of the source.",
            column=field.name,
        )
    if pattern is not None:
        if _ZONE_LETTERS.search(_QUOTED.sub("", pattern)):
            return F.unix_micros(F.to_timestamp(text, pattern))
        return _of_walls(_wall_micros(F.to_timestamp_ntz(text, F.lit(pattern))), of, zone, exact)
    trimmed = F.trim(text)
    full = trimmed
    for short, long in _SHORT:
        full = F.regexp_replace(full, short, long)
    zoned = F.unix_micros(full.try_cast("timestamp"))
    plain = _of_walls(_wall_micros(trimmed.try_cast("timestamp_ntz")), of, zone, exact)
    return F.when(trimmed.rlike(_ZONED), zoned).when(trimmed.rlike(_PLAIN), plain)


def is_within(at: Column, column: Column, name: str, path: Column, of: Range) -> Column:
    """Return whether rows are of a range; a row without a time, or with something else in its place, is an error."""
    missing = raising(
        WatermarkMissing,
        F.concat(F.lit(f"A row has no {name!r}, in "), path, F.lit(".")),
        "Every row has a time; else no range would ever read it.",
        "Give it one, or place the files in time by their names or when they were modified.",
    )
    unfit = raising(
        SourceValueUnfit,
        F.concat(F.lit(f"A row has {name!r} = "), F.substring(column.cast("string"), 1, 40), F.lit(", in "), path),
        "The time of a row is a timestamp, a date or an ISO text.",
        "Correct the file, or give the column another type in the schema of the source.",
    )
    return (
        F.when(column.isNull(), missing).when(at.isNull(), unfit).otherwise((at >= F.lit(of.lo)) & (at < F.lit(of.hi)))
    )


def raising(kind: type[FloodmarkError], fact: Column, rule: str, remedy: str) -> Column:
    """Return a column that fails the job when it is needed, with an error that `raised` knows again."""
    # A name may have lines in it, and they are what parts the sentences here.
    return F.raise_error(F.concat_ws("\n", F.lit(kind.code), F.translate(fact, "\n", " "), F.lit(rule), F.lit(remedy)))


def raised(said: str, **fields: object) -> FloodmarkError | None:
    r"""Return the error that a column has raised, from what Spark says of it.

    >>> print(raised("[USER_RAISED_EXCEPTION] source-failed\nIt is so.\nIt must not.\nChange it. SQLSTATE: P0001"))
    It is so. It must not. Change it. [source-failed]
    """
    found = _RAISED.search(said)
    parts = found[1].split("\n") if found else []
    if len(parts) != 4 or parts[0] not in _KINDS:
        return None
    return _KINDS[parts[0]](parts[1], rule=parts[2], remedy=parts[3], **fields)


def first_words(said: str) -> str:
    r"""Return what an error of Spark says, with its first cause, without the names of classes and lines of code.

    >>> first_words("An error occurred.\n: a.b.SparkException: It is so.\n\tat a.b.c\nCaused by: x.IOError: It broke.")
    'It is so. It broke.'
    """
    told: list[list[str]] = [[]]
    for line in said.splitlines():
        if match := _CAUSE.match(line):
            told.append([line[match.end() :].strip()])
        elif line.startswith("\t"):
            told.append([])
        elif line.strip() and (told[-1] or len(told) == 1):
            told[-1].append(line.strip())
    found = [" ".join(one) for one in told if one]
    # What Py4J says first is only that something went wrong.
    found = found[1:] if found and found[0].startswith("An error occurred") else found
    return " ".join(dict.fromkeys(found[:2]))


def _wall_micros(shown: Column) -> Column:
    """Return what a clock shows as a number, without asking the session for a zone."""
    seconds = F.extract(F.lit("SECOND"), shown) * F.lit(1_000_000)
    return (
        F.unix_date(shown.cast("date")).cast("bigint") * _DAY
        + F.hour(shown).cast("bigint") * F.lit(3_600_000_000)
        + F.minute(shown).cast("bigint") * F.lit(60_000_000)
        + seconds.cast("bigint")
    )


def _of_walls(shown: Column, of: Range, zone: ZoneInfo, exact: bool) -> Column:
    """Return the moments of wall times, as `moment_of` does it for one."""
    spans = wall_spans(of, zone)
    if not exact:
        spans = (spans[0], spans[-1])
    result = F.when(shown >= F.lit(spans[-1].wall), F.lit(of.hi))
    for span, after in zip(reversed(spans[:-1]), reversed(spans[1:]), strict=True):
        inside = F.greatest(F.lit(span.moment), F.least(shown - F.lit(span.offset), F.lit(after.moment - 1)))
        at = inside if exact else F.lit(of.lo)
        result = result.when(shown >= F.lit(span.wall), at)
    return result.when(shown.isNotNull(), F.lit(of.lo - 1))
