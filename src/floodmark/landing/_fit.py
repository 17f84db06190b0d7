"""Rows against a table: which of their columns go where, settled by the two schemas before any row is looked at."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from floodmark.errors import InvalidOption, TableUnfit
from floodmark.ingest._target_spec import DRIFTS, Drift
from floodmark.landing._arrow_types import all_nullable, check_maps, is_list, shown, table_type, without_nulls
from floodmark.landing._column_names import check_names, check_once
from floodmark.landing._convert import convert
from floodmark.landing._drift import holding
from floodmark.landing._rescue import RESCUED, rescued_texts

_RULE: Final = "The rows of a cell have the table's columns, and types that its columns hold without loss."


@dataclass(frozen=True, slots=True)
class Fitted:
    """How rows of one schema become rows of the table. It can be pickled."""

    rows: pa.Schema
    """What comes."""
    schema: pa.Schema
    """What is written: the columns of the table, then those that it has to get."""
    added: tuple[pa.Field, ...]
    """What a table that is there has to get first: new columns, and structs with new fields; all may be null."""
    rescued: tuple[str, ...]
    """The columns whose values are kept as JSON."""
    constants: Mapping[str, Any]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are written."""
        come = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        for name, value in self.constants.items():
            # One value for all rows; a table without such a column has it among the rescued.
            kind = self.schema.field(name).type if name in self.schema.names and name not in self.rescued else None
            come[name] = _repeated(value, kind, batch.num_rows)
        columns = []
        for one in self.schema:
            if one.name == RESCUED and self.rescued:
                aside = {name: come[name] for name in self.rescued}
                columns.append(rescued_texts(aside, batch.num_rows))
            elif one.name in come and one.name not in self.rescued:
                columns.append(convert(come[one.name], one))
            else:
                columns.append(pa.nulls(batch.num_rows, one.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True, slots=True)
class Fitting:
    """What rows have to fit: a table, or none yet, and what becomes of that which does not. It can be pickled.

    >>> table = pa.schema([("id", pa.int64()), ("note", pa.string())])
    >>> fitted = Fitting(table, "evolve").fit(pa.schema([("id", pa.int32()), ("size", pa.float64())]))
    >>> fitted.schema.names, [field.name for field in fitted.added]
    (['id', 'note', 'size'], ['size'])
    >>> Fitting(table, "freeze").fit(pa.schema([("id", pa.string())]))
    Traceback (most recent call last):
    floodmark.errors.TableUnfit: The column id is long in the table and string in the rows. ... [table-unfit]
    """

    table: pa.Schema | None
    """The columns of the table; without, it will be made from the rows."""
    drift: Drift = "freeze"
    """Columns that the table lacks: it gets them, they are refused, or their values are kept as JSON in `_rescued`."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Columns that the rows do not have themselves, with one value for all of them."""
    required: tuple[str, ...] = ()
    """Columns that rows must have, such as keys: they are not rescued, and not filled with nulls."""

    def __post_init__(self) -> None:
        """Refuse a way that there is not."""
        if self.drift not in DRIFTS:
            raise InvalidOption(
                f"Drift is {self.drift!r}.",
                rule="It is 'evolve', 'freeze' or 'rescue'.",
                remedy="Write one of them.",
                option="drift",
            )

    def fit(self, rows: pa.Schema) -> Fitted:
        """Return how rows with these columns fit, or refuse them, with the column that does not."""
        check_once(rows.names)
        constants = {name: value for name, value in self.constants.items() if name not in rows.names}
        come = {one.name: table_type(one.type, one.name) for one in rows}
        come |= {name: table_type(_type_of(name, value), name) for name, value in constants.items()}
        self._check_required(come)
        made, rescued = self._made(come) if self.table is None else self._against(self.table, come, constants)
        # Rows of the table itself, written anew, have it with what was rescued before.
        is_own = self.table is not None and RESCUED in self.table.names and not rescued
        if self.drift == "rescue" and RESCUED in come and not is_own:
            raise _unfit(
                RESCUED,
                f"The rows have a column {RESCUED}.",
                "Values that fit no column are kept in one of this name.",
                'Rename it where the rows come from, or write drift = "evolve".',
            )
        if self.drift == "rescue":
            made = _with_rescued(made)
        check_names(made)
        have = {one.name: one.type for one in (() if self.table is None else _plain(self.table))}
        new = tuple(one for one in made if have.get(one.name) != one.type)
        for one in new:
            check_maps(one.type, one.name)
        schema, added = pa.schema(made), () if self.table is None else new
        return Fitted(rows, schema, added, tuple(rescued), constants)

    def _made(self, come: Mapping[str, Any]) -> tuple[list[Any], list[str]]:
        """Return the columns of the table that is made from these."""
        known = {name: without_nulls(kind) for name, kind in come.items()}
        made = [pa.field(name, all_nullable(kind)) for name, kind in known.items() if kind is not None]
        if not made:
            raise TableUnfit(
                "There is no table yet, and nothing is known of the columns of the rows.",
                rule="A table is made from the rows, and has a column at least.",
                remedy="Make the table first, or start with a range that has rows.",
            )
        return made, []

    def _against(
        self, table: pa.Schema, come: Mapping[str, Any], constants: Mapping[str, Any]
    ) -> tuple[list[Any], list[str]]:
        """Return the columns of the table as it has to be, and the names of those that go aside."""
        made, rescued = [], []
        for one in _plain(table):
            kind = one.type
            if one.name in come and not (one.name in constants and _takes(kind, constants[one.name])):
                kind = holding(one.type, come[one.name], grow=self.drift == "evolve")
            if kind is None and self.drift == "rescue" and one.nullable and one.name not in self.required:
                rescued.append(one.name)
                kind = one.type
            if kind is None:
                raise self._unlike(one, come[one.name])
            if one.name not in come and not one.nullable:
                raise _unfit(
                    one.name,
                    f"The rows have no column {one.name}.",
                    "The table says that it is never null.",
                    "Add it to what is read, or let the table's column be null.",
                )
            made.append(one.with_type(kind))
        for name, kind in come.items():
            known = without_nulls(kind)
            if name in table.names or types.is_null(kind):
                continue
            if self.drift == "rescue":
                rescued.append(name)
            elif known is not None:
                if self.drift == "freeze":
                    raise self._unknown(name, known)
                made.append(pa.field(name, all_nullable(known)))
        return made, rescued

    def _check_required(self, come: Mapping[str, Any]) -> None:
        for name in self.required:
            if name not in come:
                near = [one for one in come if one.lower() == name.lower()]
                raise _unfit(
                    name,
                    f"The rows have no column {name}" + (f", but {near[0]}." if near else "."),
                    "The target names it, as a key, a range or a partition.",
                    "Add it to what is read, under this name, or name another one in [target].",
                )

    def _unlike(self, table: Any, rows: Any) -> TableUnfit:
        inside = _first_unlike(table.type, rows, table.name)
        aside = "" if self.drift == "rescue" or table.name in self.required else ', or write drift = "rescue"'
        return TableUnfit(
            f"The column {inside[0]} is {shown(inside[1])} in the table and {shown(inside[2])} in the rows.",
            rule=_RULE,
            remedy=f"Cast it where the rows come from, change the table{aside}.",
            column=table.name,
            table=shown(table.type),
            rows=shown(rows),
        )

    def _unknown(self, name: str, kind: Any) -> TableUnfit:
        return TableUnfit(
            f"The rows have a column {name}, {shown(kind)}, and the table has none of that name.",
            rule=_RULE,
            remedy='Write drift = "evolve" or drift = "rescue" in [target], or leave it out of the source\'s columns.',
            column=name,
            rows=shown(kind),
        )


def _plain(table: pa.Schema) -> list[Any]:
    """Return the columns of a table with types that can be compared, and nothing else said of them."""
    return [pa.field(one.name, table_type(one.type, one.name), one.nullable) for one in table]


def _with_rescued(made: list[Any]) -> list[Any]:
    for one in made:
        if one.name == RESCUED and (one.type != pa.string() or not one.nullable):
            raise _unfit(
                RESCUED,
                f"The table's column {RESCUED} is {shown(one.type)}{'' if one.nullable else ', never null'}.",
                "Values that fit no column are kept in one of this name, as text or null.",
                'Write drift = "evolve" or drift = "freeze".',
            )
    return made if any(one.name == RESCUED for one in made) else [*made, pa.field(RESCUED, pa.string())]


def _takes(kind: Any, value: Any) -> bool:
    """Return whether a constant can be of a type: a whole number has no width of its own."""
    if not isinstance(value, int) or isinstance(value, bool) or not types.is_signed_integer(kind):
        return False
    return bool(-(2 ** (kind.bit_width - 1)) <= value < 2 ** (kind.bit_width - 1))


def _type_of(name: str, value: Any) -> Any:
    try:
        return pa.scalar(value).type
    except (OverflowError, pa.ArrowInvalid) as error:
        raise _unfit(
            name,
            f"The column {name} has one value for all rows, of the type {type(value).__name__}, that no table holds.",
            "It is a text, a whole number of 64 bits, a float, a truth value, a day or a moment.",
            "Convert it to text first.",
        ) from error


def _repeated(value: Any, kind: Any, rows: int) -> Any:
    one = pa.scalar(value, kind) if kind is not None and _takes(kind, value) else pa.scalar(value)
    return pa.nulls(rows, one.type) if value is None else pa.repeat(one, rows)


def _first_unlike(table: Any, rows: Any, place: str) -> tuple[str, Any, Any]:
    """Return the place, inside of a column, at which two types part, and both types there."""
    if types.is_struct(table) and types.is_struct(rows):
        come = {one.name: one.type for one in rows}
        for one in table:
            if one.name in come and holding(one.type, come[one.name], grow=True) is None:
                return _first_unlike(one.type, come[one.name], f"{place}.{one.name}")
    elif is_list(table) and is_list(rows):
        return _first_unlike(table.value_type, rows.value_type, f"{place}[]")
    return place, table, rows


def _unfit(column: str, fact: str, rule: str, remedy: str) -> TableUnfit:
    return TableUnfit(fact, rule=rule, remedy=remedy, column=column)
