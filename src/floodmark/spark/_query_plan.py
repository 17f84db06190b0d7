"""What a DataFrame reads, and whether Spark keeps state for it. Its explanation tells, also through Connect."""

import contextlib
import io
import re
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

_RELATION: Final = re.compile(r"~StreamingRelation(?:V2)? (?P<args>.*)")
_READER: Final = re.compile(r"\breader=(?P<name>[0-9a-f]{32})\b")
_FORMAT: Final = re.compile(r"^(?:[\w.$]+@[0-9a-f]+, )?(?P<format>[\w-]+)")


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The sources of a query, and whether it has state."""

    readers: tuple[str, ...]
    """The DataFrames of ours that it reads, as read_stream and read_topics have named them."""
    others: tuple[str, ...]
    """The formats of the other streams that it reads."""
    is_stateful: bool

    @classmethod
    def of(cls, df: DataFrame) -> "QueryPlan":
        """Return those of a DataFrame."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            df.explain("extended")
        return cls.read(said.getvalue())

    @classmethod
    def read(cls, explanation: str) -> "QueryPlan":
        """Return what an explanation says.

        >>> QueryPlan.read('''
        ... == Analyzed Logical Plan ==
        ... +- ~StreamingRelationV2 a.RateProvider@30a5, rate, a.Table@3b76, [], [value#24L]
        ... == Optimized Logical Plan ==
        ... == Physical Plan ==
        ... StreamingDeduplicate [value#24L], state info [ checkpoint = <unknown>]
        ... ''')
        QueryPlan(readers=(), others=('rate',), is_stateful=True)
        """
        analyzed = explanation.partition("== Analyzed Logical Plan ==")[2].partition("== Optimized Logical Plan ==")[0]
        physical = explanation.partition("== Physical Plan ==")[2]
        readers, others = [], []
        for relation in _RELATION.finditer(analyzed):
            named = _READER.search(relation["args"])
            if named is not None:
                readers.append(named["name"])
                continue
            found = _FORMAT.match(relation["args"])
            others.append("?" if found is None else found["format"])
        return cls(tuple(readers), tuple(others), "state info [" in physical)
