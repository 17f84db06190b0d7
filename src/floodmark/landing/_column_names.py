"""The names that columns of tables can have."""

from collections.abc import Iterable
from typing import Any, Final

from pyarrow import types

from floodmark.errors import TableUnfit
from floodmark.landing._arrow_types import is_list

_NOT_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")


def check_once(names: list[str]) -> None:
    """Refuse rows that have a column twice."""
    seen = set()
    for name in names:
        if name in seen:
            raise _refused(
                name,
                f"The rows have two columns {name}.",
                "A column is there once.",
                "Rename one of them where the rows come from, or leave it out.",
            )
        seen.add(name)


def check_names(fields: Iterable[Any], inside: str = "") -> None:
    """Refuse names that tables cannot have, and those that Spark takes for one another."""
    seen: dict[str, str] = {}
    for one in fields:
        name = f"{inside}{one.name}"
        if not one.name or _NOT_IN_NAMES & set(one.name):
            raise _refused(
                name,
                f"A column is named {name!r}.",
                "A table's columns have names without blanks, tabs, line breaks and , ; { } ( ) =",
                "Rename it where the rows come from, such as by AS in a query.",
            )
        if one.name.lower() in seen:
            raise _refused(
                name,
                f"The columns {inside}{seen[one.name.lower()]} and {name} differ by case only.",
                "Spark takes them for one another.",
                "Rename one of them where the rows come from, or leave it out.",
            )
        seen[one.name.lower()] = one.name
        for kind in _structs(one.type):
            check_names(kind, f"{name}.")


def _structs(kind: Any) -> list[Any]:
    """Return the structs of a type that are not inside of other structs."""
    if types.is_struct(kind):
        return [kind]
    if types.is_map(kind):
        return _structs(kind.key_type) + _structs(kind.item_type)
    return _structs(kind.value_type) if is_list(kind) else []


def _refused(column: str, fact: str, rule: str, remedy: str) -> TableUnfit:
    return TableUnfit(fact, rule=rule, remedy=remedy, column=column)
