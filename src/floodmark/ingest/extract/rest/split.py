"""The rows of a cell from a REST service.

The pages of a cell follow each other, so a cell is one split. They are read twice: from the service, to find the end
and the columns; and then from disk, where they have waited, to become rows. In memory is a page at a time.
"""

import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import IO, Any, Final
from urllib.parse import urljoin

import pyarrow as pa

from floodmark.errors import FloodmarkError, RestAnswerInvalid, SourceValueUnfit
from floodmark.ingest.extract.rest.client import RestClient, RestClock
from floodmark.ingest.extract.rest.paging import Page, Pager, read_page, read_records
from floodmark.ingest.extract.rest.request import Credentials, Request, first_request
from floodmark.ingest.extract.rest.values import (
    Columns,
    RecordTimes,
    common_columns,
    infer_columns,
    infer_type,
    to_array,
    with_found_fields,
    without_unknown,
)
from floodmark.ingest.job.source import RestSource
from floodmark.ingest.planning.plan import PlannedRange

_BATCH: Final = 8_192
"""Small pages are put together until there are so many rows."""


class Spool:
    """Texts of any length, in the order in which they were added; on disk, compressed, and gone when closed.

    >>> with Spool() as spool:
    ...     spool.add(b"one")
    ...     spool.add(b"two")
    ...     list(spool)
    [b'one', b'two']
    """

    def __init__(self) -> None:
        self._file: IO[bytes] = TemporaryFile(prefix="floodmark-")  # noqa: SIM115 - closed by close
        self._codec = pa.Codec("zstd", compression_level=1)

    def add(self, text: bytes) -> None:
        """Keep a text."""
        packed = self._codec.compress(text, asbytes=True)
        self._file.write(_HEADER.pack(len(packed), len(text)))
        self._file.write(packed)

    def __iter__(self) -> Iterator[bytes]:
        """Give all texts back."""
        self._file.seek(0)
        while header := self._file.read(_HEADER.size):
            packed, whole = _HEADER.unpack(header)
            yield self._codec.decompress(self._file.read(packed), whole, asbytes=True)

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *error: Any) -> None:
        self._file.close()


@dataclass(frozen=True, slots=True)
class RestSplit:
    """All records that a REST service has for a cell."""

    source: RestSource
    zone: str
    row: PlannedRange
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
        pages = Pager(self.source.pagination, first_request(self.source, self.zone, self.row))
        found: dict[str, pa.DataType] = {}
        request: Request | None = pages.first
        with closing(RestClient(self.source, credentials, self.clock, self.share)) as caller:
            while request is not None:
                reply = caller.ask(request)
                answer = Page([])
                if not reply.is_empty:
                    answer = read_page(reply.body, reply.link, self.source, credentials.hidden(reply.url))
                if answer.records:
                    spool.add(reply.body)
                    found = _merge_found(found, answer.records)
                request = pages.after(_without_secret_in_link(answer, reply.url, credentials), reply.url)
        return found

    def _schema(self, found: Columns) -> pa.Schema:
        kinds = {name: without_unknown(kind) for name, kind in found.items()}
        fields: list[pa.Field] = []
        for given in self.schema or ():
            inferred = kinds.get(given.name)
            fields.append(given if inferred is None else given.with_type(with_found_fields(given.type, inferred)))
        known = {one.name for one in fields}
        for name, kind in kinds.items():
            if kind is not None and name not in known:
                fields.append(pa.field(name, kind))
        for name, value in self.row.unit.fields.items():
            if value is not None and name not in {one.name for one in fields}:
                fields.append(pa.field(name, infer_type([value])))
        return pa.schema(fields)

    def _batches(self, spool: Spool, schema: pa.Schema, found: Columns) -> Iterator[pa.RecordBatch]:
        ours = {
            name: value
            for name, value in self.row.unit.fields.items()
            if name not in found or without_unknown(found[name]) is None
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
        times = RecordTimes(self.source.time_format, self.source.zone or self.zone)
        columns = []
        for one in schema:
            name = one.name
            values = [ours[name]] * len(records) if name in ours else [record.get(name) for record in records]
            columns.append(to_array(values, one.type, name, times))
            if columns[-1].null_count and not one.nullable:
                raise SourceValueUnfit(
                    f"The field {name!r} of a record is null or missing.",
                    rule="The schema says NOT NULL of it.",
                    remedy="Take NOT NULL out of the schema.",
                    column=name,
                )
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def rest_splits(
    source: RestSource, zone: str, row: PlannedRange, *, share: int = 1, schema: pa.Schema | None = None
) -> tuple[RestSplit, ...]:
    """Return the part that a cell is read in: one, since each page is known only after the one before.

    `share` is how many parts may be read at the same time; each asks for that part of the source's rate.

    >>> from floodmark.ingest import Range, Unit
    >>> row = PlannedRange(Unit.of({}), Range(0, 1), Range(0, 1), "new", ("new",))
    >>> len(rest_splits(RestSource(url="https://api.example/orders"), "UTC", row))
    1
    """
    return (RestSplit(source, zone, row, max(1, share), schema),)


def _merge_found(found: dict[str, pa.DataType], records: list[dict[str, Any]]) -> dict[str, pa.DataType]:
    try:
        columns = infer_columns(records)
        "".join(columns).encode()
        return common_columns(found, columns)
    except (UnicodeError, RecursionError) as error:
        raise RestAnswerInvalid(
            f"The names in a record cannot be read ({type(error).__name__}).",
            rule="Names are Unicode, and objects are within each other a few times, not hundreds.",
            remedy="Ask who runs the service; records like these cannot be landed.",
        ) from None


def _without_secret_in_link(answer: Page, url: str, credentials: Credentials) -> Page:
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


_HEADER: Final = struct.Struct("<QQ")
