"""SQLite by ADBC, from a file that is there and stays as it is."""

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from floodmark.errors import SourceFailed
from floodmark.extract._sql_adbc import AdbcConnection
from floodmark.extract._sql_columns import Column, value_unfit
from floodmark.extract._sql_dialect import Dialect
from floodmark.extract._sql_sqlite_types import PRIMES, sqlite_columns
from floodmark.extract._sql_url import SqlUrl
from floodmark.ingest._source_spec import SqlSource

BATCH_ROWS: Final = 16_384
_MISMATCH: Final = re.compile(r"Type mismatch in column (\d+): (.*)")


class SqliteReader(AdbcConnection):
    """Reads SQLite, with the types that its columns declare."""

    dialect = Dialect("sqlite")

    def __init__(self, url: SqlUrl, source: SqlSource, zone: str) -> None:
        """Connect, or say why not."""
        from adbc_driver_sqlite import StatementOptions, dbapi

        self._source, self._zone = source, zone
        options = {StatementOptions.BATCH_ROWS.value: str(BATCH_ROWS)}
        super().__init__(url, lambda: dbapi.connect(url.for_sqlite, autocommit=True), options)
        try:
            self.all("PRAGMA busy_timeout = 30000")
        except BaseException:
            self.__exit__()
            raise

    def columns(self, relation: str) -> list[Column]:
        """Return the columns, as they are declared."""
        return sqlite_columns(self.all, relation, self._source, self._zone)

    def batches(self, statement: str, columns: list[Column]) -> Iterator[pa.RecordBatch]:
        """Yield batches of some thousand rows."""
        names = [self.dialect.identifier(one.name) for one in columns]
        prime = ", ".join(f"{PRIMES[one.arrives]} AS {name}" for one, name in zip(columns, names, strict=True))
        with self.stream(f"SELECT {prime} UNION ALL {statement}") as reader:
            for column, found in zip(columns, reader.schema.types, strict=True):
                if found != column.arrives:
                    raise value_unfit(column, f"found {found}")
            is_first = True
            while (batch := self._next(reader, columns)) is not None:
                yield batch.slice(1) if is_first else batch
                is_first = False

    def _next(self, reader: pa.RecordBatchReader, columns: list[Column]) -> pa.RecordBatch | None:
        try:
            return self.next_batch(reader)
        except SourceFailed as error:
            mismatch = _MISMATCH.search(str(error))
            if mismatch is None:
                raise
            raise value_unfit(columns[int(mismatch[1])], mismatch[2].partition(". ")[0]) from None
