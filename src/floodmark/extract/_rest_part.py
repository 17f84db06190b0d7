"""The rows of a cell from a REST service.

The pages of a cell follow each other, so a cell is one part. They are read twice: from the service, to find the end
and the columns; and then from disk, where they have waited, to become rows. In memory is a page at a time.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urljoin

import pyarrow as pa

from floodmark.errors import FloodmarkError, RestAnswerInvalid, SourceValueUnfit
from floodmark.extract._rest_answer import Answer, read_answer, read_records
from floodmark.extract._rest_auth import Credentials
from floodmark.extract._rest_clock import RestClock
from floodmark.extract._rest_http import Caller
from floodmark.extract._rest_paging import Pages
from floodmark.extract._rest_request import Request, request_of
from floodmark.extract._rest_shape import Columns, columns_of, pruned, type_of, united_columns, widened
from floodmark.extract._rest_spool import Spool
from floodmark.extract._rest_values import Times, array_of
from floodmark.ingest import RestSource, Row

_BATCH: Final = 8_192
"""Small pages are put together until there are so many rows."""


@dataclass(frozen=True, slots=True)
class RestPart:
    """All records that a REST service has for a cell."""

    source: RestSource
    zone: str
    row: Row
    share: int = 1
    schema: pa.Schema | None = None
    clock: RestClock = field(default_factory=RestClock, compare=False, repr=False)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Ask for all pages, and give their records as batches.

        Columns are those of the schema, then all others that occur, then the fields of the unit that no record has a
        value for. The secret is looked up here, and is in no error.
        """
        credentials = Credentials.of(self.source.auth)
        try:
            with Spool() as spool:
                found = self._fetch(credentials, spool)
                yield from self._batches(spool, self._schema(found), found)
        except FloodmarkError as error:
            raise _without_secret(error, credentials) from None

    def _fetch(self, credentials: Credentials, spool: Spool) -> dict[str, pa.DataType]:
        """Read all pages into the spool, and return the columns that they have."""
        pages = Pages(self.source.pagination, request_of(self.source, self.zone, self.row))
        found: dict[str, pa.DataType] = {}
        request: Request | None = pages.first
        with closing(Caller(self.source, credentials, self.clock, self.share)) as caller:
            while request is not None:
                reply = caller.ask(request)
                answer = Answer([])
                if not reply.is_empty:
                    answer = read_answer(reply.body, reply.link, self.source, credentials.hidden(reply.url))
                if answer.records:
                    spool.add(reply.body)
                    found = _merged(found, answer.records)
                request = pages.after(_without_secret_in_link(answer, reply.url, credentials), reply.url)
        return found

    def _schema(self, found: Columns) -> pa.Schema:
        kinds = {name: pruned(kind) for name, kind in found.items()}
        fields: list[pa.Field] = []
        for given in self.schema or ():
            inferred = kinds.get(given.name)
            fields.append(given if inferred is None else given.with_type(widened(given.type, inferred)))
        known = {one.name for one in fields}
        for name, kind in kinds.items():
            if kind is not None and name not in known:
                fields.append(pa.field(name, kind))
        for name, value in self.row.unit.fields.items():
            if value is not None and name not in {one.name for one in fields}:
                fields.append(pa.field(name, type_of([value])))
        return pa.schema(fields)

    def _batches(self, spool: Spool, schema: pa.Schema, found: Columns) -> Iterator[pa.RecordBatch]:
        ours = {
            name: value
            for name, value in self.row.unit.fields.items()
            if name not in found or pruned(found[name]) is None
        }
        is_exact = any(_has_decimal(one.type) for one in schema)
        waiting: list[dict[str, Any]] = []
        is_any = False
        for body in spool:
            waiting += read_records(body, self.source, self.source.url, exact=is_exact)
            whole = len(waiting) - len(waiting) % _BATCH
            for start in range(0, whole, _BATCH):
                yield self._batch(waiting[start : start + _BATCH], schema, ours)
                is_any = True
            del waiting[:whole]
        if waiting or not is_any:
            yield self._batch(waiting, schema, ours)

    def _batch(self, records: list[dict[str, Any]], schema: pa.Schema, ours: dict[str, Any]) -> pa.RecordBatch:
        times = Times(self.source.time_format, self.source.zone or self.zone)
        columns = []
        for one in schema:
            name = one.name
            values = [ours[name]] * len(records) if name in ours else [record.get(name) for record in records]
            columns.append(array_of(values, one.type, name, times))
            if columns[-1].null_count and not one.nullable:
                raise SourceValueUnfit(
                    f"The field {name!r} of a record is null or missing.",
                    rule="The schema says NOT NULL of it.",
                    remedy="Take NOT NULL out of the schema.",
                    column=name,
                )
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def rest_parts(
    source: RestSource, zone: str, row: Row, *, share: int = 1, schema: pa.Schema | None = None
) -> tuple[RestPart, ...]:
    """Return the part that a cell is read in: one, since each page is known only after the one before.

    `share` is how many parts may be read at the same time; each asks for that part of the source's rate.

    >>> from floodmark.ingest import Range, Unit
    >>> row = Row(Unit.of({}), Range(0, 1), Range(0, 1), "new", ("new",))
    >>> len(rest_parts(RestSource(url="https://api.example/orders"), "UTC", row))
    1
    """
    return (RestPart(source, zone, row, max(1, share), schema),)


def _merged(found: dict[str, pa.DataType], records: list[dict[str, Any]]) -> dict[str, pa.DataType]:
    try:
        columns = columns_of(records)
        "".join(columns).encode()
        return united_columns(found, columns)
    except (UnicodeError, RecursionError) as error:
        raise RestAnswerInvalid(
            f"The names in a record cannot be read ({type(error).__name__}).",
            rule="Names are Unicode, and objects are within each other a few times, not hundreds.",
            remedy="Ask who runs the service; records like these cannot be landed.",
        ) from None


def _without_secret_in_link(answer: Answer, url: str, credentials: Credentials) -> Answer:
    if answer.link is None:
        return answer
    return replace(answer, link=credentials.unsigned(urljoin(url, answer.link)))


def _without_secret(error: FloodmarkError, credentials: Credentials) -> FloodmarkError:
    hide = credentials.hidden
    fields = {name: hide(value) if isinstance(value, str) else value for name, value in error.fields.items()}
    return type(error)(hide(error.fact), rule=hide(error.rule), remedy=hide(error.remedy), **fields)


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return True
    return any(_has_decimal(kind.field(n).type) for n in range(kind.num_fields))
