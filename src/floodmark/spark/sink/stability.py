"""Whether a row of a parallel sink goes to the same group when its batch is computed again.

In parallel mode some groups of a batch may be written when the driver dies. The batch is then computed again, and the
other groups are written: a row that now belongs to another group would be lost or doubled. Rows are routed by their
key, or by their value if they have none, so these must not change.
"""

import re
from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, MapType, StructType

from floodmark.errors import InvalidOption

_RANDOM: Final = (
    "rand|randn|random|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_name"
    "|input_file_block_start|input_file_block_length"
)
_ORDER_DEPENDENT: Final = (
    "first|last|any_value|first_value|last_value|collect_list|collect_set|array_agg|listagg|string_agg|max_by|min_by"
    "|mode|approx_percentile|percentile_approx"
)
_UNSTABLE: Final = re.compile(rf"\b(?P<name>{_RANDOM}|{_ORDER_DEPENDENT})\(", re.IGNORECASE)
_OPAQUE: Final = re.compile(r"spark_partition_id\(\) (?:>=|<) 0", re.IGNORECASE)
"""Conditions that are always true or never, by which Floodmark's sources keep the optimizer from moving operators."""
_FLOAT_SUM: Final = re.compile(
    r"\b(?P<name>sum|try_sum|avg|try_avg|stddev\w*|var\w*|corr|covar\w*|skewness|kurtosis|regr_\w+)\(", re.IGNORECASE
)
_DEDUPLICATED: Final = re.compile(r"\bDeduplicate(?:WithinWatermark)? \[(?P<keys>[^\]]*)\]")


def unstable_parts(explanation: str, routed_by: StructType) -> list[str]:
    """Return what makes the columns that rows are routed by change when they are computed again.

    `explanation` is the extended explanation of a DataFrame with these columns only. Spark logs the time of a batch,
    so current_timestamp() does not change.

    >>> unstable_parts(
    ...     '''
    ... == Optimized Logical Plan ==
    ... Project [id#1L, rand(7) AS luck#2]
    ... == Physical Plan ==
    ... ''',
    ...     StructType(),
    ... )
    ['rand()']
    """
    optimized = explanation.partition("== Optimized Logical Plan ==")[2].partition("== Physical Plan ==")[0]
    found = {f"{match['name'].lower()}()" for match in _UNSTABLE.finditer(_OPAQUE.sub("", optimized))}
    if _has_floats(routed_by):
        found |= {f"{match['name'].lower()}() of fractions" for match in _FLOAT_SUM.finditer(optimized)}
    for match in _DEDUPLICATED.finditer(optimized):
        keys = {key.strip().partition("#")[0] for key in match["keys"].split(",")}
        if not set(routed_by.fieldNames()) <= keys:
            found.add("dropDuplicates()")
    return sorted(found)


def require_stable_routing(explanation: str, routed_by: StructType, key: Sequence[str]) -> None:
    """Refuse a query in parallel mode whose rows may be routed to other groups when they are computed again."""
    parts = unstable_parts(explanation, routed_by)
    if not parts:
        return
    by = f"the key {', '.join(key)}" if key else "their values, since no key is named"
    raise InvalidOption(
        f"A parallel sink routes rows by {by}; and these depend on {', '.join(parts)}.",
        rule="If a driver dies between two groups of a batch, the rest is computed again; a row that then belongs to "
        "another group would be lost or doubled.",
        remedy="Set key= to columns that stay the same when a row is computed again, such as an id or a window; or "
        "leave out parallel.",
        option="parallel",
        unstable=parts,
    )


def _has_floats(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_floats(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_floats(kind.elementType)
    if isinstance(kind, MapType):
        return _has_floats(kind.keyType) or _has_floats(kind.valueType)
    return isinstance(kind, (DoubleType, FloatType))
