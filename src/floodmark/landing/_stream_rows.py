"""Rows on their way into a stream: with its columns, one for each key if they are merged, and with their keys."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import EventInvalid, StreamUnfit, TableUnfit
from floodmark.ingest import Unit
from floodmark.landing._fit import Fitted, Fitting
from floodmark.landing._stream_form import StreamForm
from floodmark.streams.ddl import write_ddl

_REDUCED_FROM: Final = 500_000
"""So many rows are gathered before they are reduced to the newest of each key."""

_PLACE: Final = "\0place"


class StreamRows:
    """Makes rows of a cell fit a stream: with its columns, in their order and of their types; or refuses them.

    Whether they fit is said by the types alone: what fits today does not fail tomorrow for a larger number. A column
    that rows lack is null, or has the value of the unit's field of that name.
    """

    def __init__(self, form: StreamForm, schema: Any, unit: Unit) -> None:
        """Fit rows of this unit to a stream of this schema."""
        self._form = form
        self._schema = schema
        constants = {
            name: _constant(value, schema.field(name).type)
            for name, value in unit.fields.items()
            if name in schema.names
        }
        self._fitting = Fitting(schema, form.drift, constants, form.needed)
        self._known: dict[Any, Fitted] = {}

    def __call__(self, batch: Any) -> Any:
        """Return the rows of a batch as the stream takes them."""
        try:
            known = self._known.get(batch.schema)
            if known is None:
                known = self._known[batch.schema] = self._fit(batch.schema)
            return known.apply(self._with_instants(batch))
        except TableUnfit as error:
            column = error.fields.get("column")
            raise StreamUnfit(
                f"The rows do not fit the stream {self._form.name!r}, here called the table: {error.fact}",
                rule=f"It has the columns {write_ddl(self._schema)}.",
                remedy=f"Cast {column or 'them'} where the rows come from or leave it out there, "
                "or land in a stream of another name.",
                stream=self._form.name,
                column=column,
            ) from error

    def _fit(self, rows: Any) -> Fitted:
        fitted = self._fitting.fit(self._timed(rows))
        if fitted.added:
            name = fitted.added[0].name
            raise StreamUnfit(
                f"The stream {self._form.name!r} has no column {name!r}.",
                rule="What does not fit is kept there, and the columns of a stream stay as they are.",
                remedy='Write drift = "freeze", or land in a stream of another name.',
                stream=self._form.name,
                column=name,
            )
        return fitted

    def _timed(self, rows: Any) -> Any:
        """Return the schema of rows, whose times are moments where the stream has moments."""
        time = self._form.time
        has_moments = time is not None and time.name in self._schema.names and _is_moment(self._schema.field(time.name))
        return self._form.with_instants(rows) if has_moments else rows

    def _with_instants(self, batch: Any) -> Any:
        timed = self._timed(batch.schema)
        if timed is batch.schema or self._form.time is None:
            return batch
        place = timed.get_field_index(self._form.time.name)
        columns = batch.columns
        columns[place] = self._form.time.instants(columns[place])
        return pa.RecordBatch.from_arrays(columns, schema=timed)


def newest(batches: Iterable[Any], form: StreamForm) -> Iterator[Any]:
    """Give the newest row of each key, in the order in which they came; of two that are as new, the later one.

    All keys are held in memory. A row whose `newest_by` is null is older than any other.
    """
    gathered: list[Any] = []
    rows, limit = 0, _REDUCED_FROM
    for batch in batches:
        for key in form.keys:
            if batch.column(key).null_count:
                raise EventInvalid(
                    f"A row has no value in the column {key!r}.",
                    rule="It is one of the keys, and a row without its key could never be found again.",
                    remedy="Leave such rows out with `where`, or name other keys.",
                    column=key,
                )
        gathered.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            gathered = [_reduced(pa.concat_tables(_tables(gathered)), form)]
            rows = gathered[0].num_rows
            limit = rows + max(rows, _REDUCED_FROM)
    if gathered:
        reduced = _reduced(pa.concat_tables(_tables(gathered)), form)
        yield from reduced.to_batches(max_chunksize=65_536)


def keys_of(batch: Any, form: StreamForm) -> Any:
    """Return the key of each row: the value of its one key column, or several as JSON; None if rows have none.

    >>> form = StreamForm("orders", "load", None, ("id", "shop"), "at")
    >>> keys_of(pa.record_batch({"id": [7], "shop": ["north"]}), form).to_pylist()
    ['{"id":7,"shop":"north"}']
    """
    if not form.keys:
        return None
    if len(form.keys) == 1:
        return batch.column(form.keys[0])
    rows = batch.select(list(form.keys)).to_pylist()
    return pa.array([json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=str) for row in rows])


def _tables(some: list[Any]) -> list[Any]:
    return [one if isinstance(one, pa.Table) else pa.Table.from_batches([one]) for one in some]


def _reduced(rows: Any, form: StreamForm) -> Any:
    placed = rows.append_column(_PLACE, pa.array(range(rows.num_rows), pa.int64()))
    assert form.newest_by is not None
    # Nulls come at the end, whichever way it goes; so the newest come first.
    order = pc.sort_indices(
        placed.select([form.newest_by, _PLACE]), sort_keys=[(form.newest_by, "descending"), (_PLACE, "descending")]
    )
    # The order of rows counts for what is first, and only one thread keeps it.
    ordered = placed.select([*form.keys, _PLACE]).take(order)
    first = ordered.group_by(list(form.keys), use_threads=False).aggregate([(_PLACE, "first")])
    places = first.column(f"{_PLACE}_first")
    return rows.take(places.take(pc.sort_indices(places)))


def _is_moment(field: Any) -> bool:
    return bool(pa.types.is_timestamp(field.type) and field.type.tz is not None)


def _constant(value: Any, kind: Any) -> Any:
    """Return the value of a unit's field as a column of a type has it: others may have made it text, or a float."""
    if pa.types.is_string(kind) and value is not None:
        return str(value)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if is_number and pa.types.is_floating(kind) else value
