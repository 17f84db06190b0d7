"""Splits of REST services: one per cell, since the request of each page depends on the page before.

The pages are read twice: first from the service, to find the last page and the columns, and then from a temporary file,
to convert them to rows. Only one page at a time is in memory.
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
    with_inferred_fields,
    without_null_types,
)
from floodmark.ingest.job.source import RestSource
from floodmark.ingest.planning.plan import PlannedRange

_BATCH: Final = 8_192
"""The rows of a batch; smaller pages are combined."""


class Spool:
    """A temporary file of byte strings, compressed and in the order in which they were added; deleted when closed.

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
        """Append a byte string."""
        packed = self._codec.compress(text, asbytes=True)
        self._file.write(_HEADER.pack(len(packed), len(text)))
        self._file.write(packed)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all byte strings."""
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
    """All records of a REST service for a cell."""

    source: RestSource
    zone: str
    row: PlannedRange
    concurrency: int = 1
    """How many splits of the source may be read at the same time."""
    schema: pa.Schema | None = None
    clock: RestClock = field(default_factory=RestClock, compare=False, repr=False)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Request all pages and yield their records as batches.

        The columns are those of the schema, then all others that occur in records, then the fields of the unit for
        which no record has a value. The secret is looked up here; errors do not contain it.
        """
        credentials = Credentials.of(self.source.auth)
        try:
            with Spool() as spool:
                inferred = self._fetch(credentials, spool)
                yield from self._batches(spool, self._schema(inferred), inferred)
        except FloodmarkError as error:
            raise _redact_error(error, credentials) from None

    def _fetch(self, credentials: Credentials, spool: Spool) -> dict[str, pa.DataType]:
        """Read all pages into the spool and return the columns inferred from them."""
        pager = Pager(self.source.pagination, first_request(self.source, self.zone, self.row))
        columns: dict[str, pa.DataType] = {}
        request: Request | None = pager.first
        with closing(RestClient(self.source, credentials, self.clock, self.concurrency)) as client:
            while request is not None:
                reply = client.send(request)
                page = Page([])
                if not reply.is_empty:
                    page = read_page(reply.body, reply.link, self.source, credentials.redact(reply.url))
                if page.records:
                    spool.add(reply.body)
                    columns = _merge_columns(columns, page.records)
                request = pager.next_request(_remove_secret_from_link(page, reply.url, credentials), reply.url)
        return columns

    def _schema(self, inferred: Columns) -> pa.Schema:
        kinds = {name: without_null_types(kind) for name, kind in inferred.items()}
        fields: list[pa.Field] = []
        for declared in self.schema or ():
            kind = kinds.get(declared.name)
            fields.append(declared if kind is None else declared.with_type(with_inferred_fields(declared.type, kind)))
        declared_names = {column.name for column in fields}
        for name, kind in kinds.items():
            if kind is not None and name not in declared_names:
                fields.append(pa.field(name, kind))
        for name, value in self.row.unit.fields.items():
            if value is not None and name not in {column.name for column in fields}:
                fields.append(pa.field(name, infer_type([value])))
        return pa.schema(fields)

    def _batches(self, spool: Spool, schema: pa.Schema, inferred: Columns) -> Iterator[pa.RecordBatch]:
        constants = {
            name: value
            for name, value in self.row.unit.fields.items()
            if name not in inferred or without_null_types(inferred[name]) is None
        }
        is_exact = any(_has_decimal(column.type) for column in schema)
        records: list[dict[str, Any]] = []
        has_batch = False
        for body in spool:
            records += read_records(body, self.source, self.source.url, exact=is_exact)
            whole = len(records) - len(records) % _BATCH
            for start in range(0, whole, _BATCH):
                yield self._batch(records[start : start + _BATCH], schema, constants)
                has_batch = True
            del records[:whole]
        if records or not has_batch:
            yield self._batch(records, schema, constants)

    def _batch(self, records: list[dict[str, Any]], schema: pa.Schema, constants: dict[str, Any]) -> pa.RecordBatch:
        times = RecordTimes(self.source.time_format, self.source.zone or self.zone)
        columns = []
        for column in schema:
            name = column.name
            is_constant = name in constants
            values = [constants[name]] * len(records) if is_constant else [record.get(name) for record in records]
            columns.append(to_array(values, column.type, name, times))
            if columns[-1].null_count and not column.nullable:
                raise SourceValueUnfit(
                    f"The field {name!r} of a record is null or missing.",
                    rule="The schema of the source has it as NOT NULL.",
                    remedy=f"Remove NOT NULL from {name!r} in schema.",
                    column=name,
                )
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def rest_splits(
    source: RestSource, zone: str, row: PlannedRange, *, concurrency: int = 1, schema: pa.Schema | None = None
) -> tuple[RestSplit, ...]:
    """Return the splits of a cell: one, since the request of each page depends on the page before.

    `concurrency` is how many splits of the source may be read at the same time; the source's rate is divided by it.

    >>> from floodmark.ingest import Range, Unit
    >>> row = PlannedRange(Unit.of({}), Range(0, 1), Range(0, 1), "new", ("new",))
    >>> len(rest_splits(RestSource(url="https://api.example/orders"), "UTC", row))
    1
    """
    return (RestSplit(source, zone, row, max(1, concurrency), schema),)


def _merge_columns(columns: dict[str, pa.DataType], records: list[dict[str, Any]]) -> dict[str, pa.DataType]:
    try:
        inferred = infer_columns(records)
        "".join(inferred).encode()
        return common_columns(columns, inferred)
    except (UnicodeError, RecursionError) as error:
        raise RestAnswerInvalid(
            f"The names in a record cannot be read ({type(error).__name__}).",
            rule="Names are valid Unicode, and objects are nested a few levels deep, not hundreds.",
            remedy="Exclude such records with params in [source], or have the service corrected.",
        ) from None


def _remove_secret_from_link(page: Page, url: str, credentials: Credentials) -> Page:
    if page.link is None:
        return page
    return replace(page, link=credentials.remove_from_url(urljoin(url, page.link)))


def _redact_error(error: FloodmarkError, credentials: Credentials) -> FloodmarkError:
    redact = credentials.redact
    fields = {name: redact(value) if isinstance(value, str) else value for name, value in error.fields.items()}
    return type(error)(redact(error.fact), rule=redact(error.rule), remedy=redact(error.remedy), **fields)


def _has_decimal(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return True
    return any(_has_decimal(kind.field(n).type) for n in range(kind.num_fields))


_HEADER: Final = struct.Struct("<QQ")
