"""Schemas as Delta Lake writes them, which is JSON: in what two differ, and what is asked of those who write."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = Mapping[str, Any]

_PARTITIONED_BY: Final = ("boolean", "byte", "date", "integer", "long", "short", "string")
_ASKED_OF_COLUMNS: Final = ("delta.constraints", "delta.generationExpression", "delta.identity", "delta.invariants")

_FORBID_COPIES: Final = {
    "appendOnly": "that rows are only appended",
    "enableChangeDataFeed": "a feed of changes, in which rows that are copied would be new",
}


def differences(table: str, rows: str) -> list[str]:
    """Return in what the columns of rows differ from those of a table; both schemas are JSON.

    The order of columns is of no account, nor is what else is said of them.

    >>> def schema(*columns):
    ...     return json.dumps({"type": "struct", "fields": [dict(zip(("name", "type"), one)) for one in columns]})
    >>> differences(schema(("id", "long"), ("at", "timestamp")), schema(("at", "date"), ("item", "string")))
    ['at is timestamp in the table and date in the rows', 'id is missing in the rows', 'item is not in the table']
    """
    return _of_structs(json.loads(table), json.loads(rows), "")


def unmet(schema: str, configuration: Mapping[str, str | None], partition_by: list[str]) -> list[str]:
    """Return what a table asks of those who write to it, and that nobody here sees to.

    >>> unmet('{"type": "struct", "fields": []}', {"delta.constraints.positive": "n > 0"}, [])
    ['the constraint positive']
    """
    found = [
        f"the constraint {name.removeprefix('delta.constraints.')}"
        for name in sorted(configuration)
        if name.startswith("delta.constraints.")
    ]
    if (configuration.get("delta.columnMapping.mode") or "none") != "none":
        found.append("the mapping of its columns")
    for field in json.loads(schema)["fields"]:
        if any(name.startswith(_ASKED_OF_COLUMNS) for name in field.get("metadata") or {}):
            found.append(f"the rule of the column {field['name']}")
        if field["name"] in partition_by and field["type"] not in _PARTITIONED_BY:
            found.append(f"partitions by {field['name']}, which is {field['type']}")
    return found


def in_the_way(configuration: Mapping[str, str | None], features: Iterable[str]) -> list[str]:
    """Return what of a table forbids that files are written anew without some of their rows.

    >>> in_the_way({"delta.appendOnly": "true"}, ["deletionVectors"])
    ['that rows are only appended', 'deletion vectors, by which rows of a file are gone that are still in it']
    """
    found = [
        what for name, what in _FORBID_COPIES.items() if (configuration.get(f"delta.{name}") or "").lower() == "true"
    ]
    if "deletionVectors" in features:
        found.append("deletion vectors, by which rows of a file are gone that are still in it")
    return found


def _of_structs(table: Json, rows: Json, place: str) -> list[str]:
    have = {field["name"]: field for field in table["fields"]}
    come = {field["name"]: field for field in rows["fields"]}
    found = []
    for name in sorted(have.keys() | come.keys()):
        if name not in come:
            found.append(f"{place}{name} is missing in the rows")
        elif name not in have:
            found.append(f"{place}{name} is not in the table")
        else:
            found += _of_types(have[name]["type"], come[name]["type"], place + name)
            if not have[name].get("nullable", True) and come[name].get("nullable", True):
                found.append(f"{place}{name} must not be null in the table and may be in the rows")
    return found


def _of_types(table: str | Json, rows: str | Json, place: str) -> list[str]:
    if isinstance(table, str) or isinstance(rows, str) or table["type"] != rows["type"]:
        return [] if table == rows else [f"{place} is {_shown(table)} in the table and {_shown(rows)} in the rows"]
    if table["type"] == "struct":
        return _of_structs(table, rows, f"{place}.")
    if table["type"] == "array":
        return _of_types(table["elementType"], rows["elementType"], f"{place}[]")
    keys = _of_types(table["keyType"], rows["keyType"], f"{place}.key")
    return keys + _of_types(table["valueType"], rows["valueType"], f"{place}.value")


def _shown(kind: str | Json) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
