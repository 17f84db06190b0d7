"""Reads the units of a job from its secondary input: files, a Delta table, or a table or query of a database."""

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from floodmark._util.text import did_you_mean
from floodmark.errors import MissingPackage, SecondaryInputFailed, UnitsInvalid
from floodmark.ingest.database import open_engine, url_without_credentials
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.options import Secret
from floodmark.ingest.job.unit import INPUT_FORMATS, SecondaryInput, Unit, compile_filter, duplicate_unit_error


def read_units(secondary: SecondaryInput, environment: Mapping[str, str] | None = None) -> tuple[Unit, ...]:
    """Return the units that a secondary input gives now, in the order of their keys.

    The order is that of the keys, because a table gives its rows in any.
    """
    found: dict[str, Unit] = {}
    for row in filter_rows(_input_rows(secondary, environment), secondary):
        unit = Unit.of(row)
        if unit.key in found and not secondary.distinct:
            raise duplicate_unit_error(unit, "Write distinct = true if one of them is enough, or choose more fields.")
        found[unit.key] = unit
        if len(found) > secondary.most:
            raise UnitsInvalid(
                f"There are more than {secondary.most} units.",
                rule="A secondary input gives a bounded number of units.",
                remedy="Filter it, or raise most if so many are meant.",
                most=secondary.most,
            )
    if not found and not secondary.may_be_empty:
        raise SecondaryInputFailed(
            "The secondary input gives no units.",
            rule="Without units every unit would count as retired.",
            remedy="See what it reads and filters; write may_be_empty = true if that is as it should be.",
        )
    return tuple(found[key] for key in sorted(found))


def with_units(job: Job, environment: Mapping[str, str] | None = None) -> Job:
    """Return the job with its units read, if they come from a secondary input and are not read yet.

    >>> listed = Job("a", "UTC", TimeWatermark("t", Bound.parse("2020-01-01", "UTC"), Bound.parse("-", "UTC")))
    >>> with_units(listed) is listed
    True
    """
    if job.units is None or job.units.units is not None or not isinstance(job.units.secondary, SecondaryInput):
        return job
    return job.with_units(read_units(job.units.secondary, environment))


UnitRow = Mapping[str, Any]


def filter_rows(rows: Iterable[UnitRow], secondary: SecondaryInput) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of the rows that pass all filters.

    >>> rows = [{"id": 1, "ok": "yes"}, {"id": 2, "ok": None}, {"id": 3, "ok": "yes, no"}]
    >>> list(filter_rows(rows, SecondaryInput(fields=("id",), path="x.csv", filters={"ok": "yes"})))
    [{'id': 1}]
    """
    filters = [(column, compile_filter(column, pattern)) for column, pattern in secondary.filters.items()]
    for row in rows:
        if all(row[column] is not None and fits.fullmatch(_filter_text(row[column])) for column, fits in filters):
            yield {name: _unit_value(name, row[name]) for name in secondary.fields}


def _input_rows(secondary: SecondaryInput, environment: Mapping[str, str] | None) -> Iterator[UnitRow]:
    if secondary.path is not None:
        return read_file_rows(secondary.path, secondary.columns, secondary.format)
    url = secondary.url.value(environment) if isinstance(secondary.url, Secret) else str(secondary.url)
    password = None if secondary.password is None else secondary.password.value(environment)
    return read_query_rows(url, secondary.columns, table=secondary.table, query=secondary.query, password=password)


def _filter_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(_unit_value("", value))


def _unit_value(name: str, value: Any) -> Any:
    """Return a value as a unit can have it."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise UnitsInvalid(
        f"The field {name!r} of a unit is of the type {type(value).__name__}.",
        rule="It is a text, a number, a truth value, a time or NULL.",
        remedy="Choose another field, or a query that turns it into text.",
        field=name,
    )


def read_query_rows(
    url: str, columns: Sequence[str], *, table: str | None = None, query: str | None = None, password: str | None = None
) -> Iterator[UnitRow]:
    """Yield rows with these columns of a table or query. Nothing is changed in the database, and nothing made."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    engine = open_engine(url, password)
    try:
        with engine.connect().execution_options(stream_results=True, max_row_buffer=1_000) as connection:
            # A colon would begin a parameter.
            statement: Any = text(query.replace(":", r"\:")) if query is not None else _select_all(table or "")
            result = connection.execute(statement)
            check_input_columns(columns, list(result.keys()), "The query" if table is None else f"The table {table}")
            for row in result.mappings():
                yield {column: row[column] for column in columns}
    except SQLAlchemyError as error:
        # What the error says of its own may quote parameters; what the driver says does not.
        said = str(getattr(error, "orig", None) or error).splitlines() or [""]
        raise SecondaryInputFailed(
            f"The units cannot be read from {url_without_credentials(url)}: {said[0]}.",
            rule="Units are read from a database that is there before a plan is made.",
            remedy="Correct the URL, the table or the query; see whether the database answers.",
        ) from error
    finally:
        engine.dispose()


def _select_all(table: str) -> Any:
    from sqlalchemy import literal_column, select
    from sqlalchemy.sql import table as named

    schema, _, name = table.rpartition(".")
    return select(literal_column("*")).select_from(named(name, schema=schema or None))


_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".avro": "avro",
}


def read_file_rows(path: str | Path, columns: Sequence[str], kind: str | None = None) -> Iterator[UnitRow]:
    """Yield rows with these columns: of a file, of all files in a folder in the order of their names, of a Delta table.

    The kind is that of the file's name, unless it is said. Of CSV each value is a text, and an empty one is NULL.
    """
    if "://" in str(path) and kind in (None, "delta"):
        yield from _delta(str(path), columns)
        return
    for file, known in _list_files(Path(path), kind):
        try:
            yield from _READERS[known](file, columns)
        except (OSError, UnicodeError, csv.Error) as error:
            raise _unreadable_file_error(file, error) from error


def check_input_columns(columns: Sequence[str], there: Sequence[str], where: str) -> None:
    """Refuse columns that are not there.

    >>> check_input_columns(["idd"], ["id", "status"], "ids.csv")
    Traceback (most recent call last):
    floodmark.errors.SecondaryInputFailed: ids.csv has no column 'idd'. ... Did you mean 'id'? ...
    """
    for column in columns:
        if column not in there:
            raise SecondaryInputFailed(
                f"{where} has no column {column!r}.",
                rule="Units are made of columns that are there, and filters look at such.",
                remedy=did_you_mean(column, there, otherwise=f"It has {', '.join(there) or 'none at all'}."),
                column=column,
            )


def _list_files(path: Path, kind: str | None) -> list[tuple[Path, str]]:
    is_delta = (path / "_delta_log").is_dir()
    if kind == "delta" and not is_delta:
        raise _missing_file_error(path, "is no Delta table, or none yet")
    if is_delta and kind in (None, "delta"):
        return [(path, "delta")]
    if path.is_dir():
        # Names that begin like these are bookkeeping of Spark, Hadoop and Delta.
        files = sorted(one for one in path.rglob("*") if one.is_file() and one.name[0] not in "._")
        if not files:
            raise _missing_file_error(path, "is a folder without files")
    elif path.is_file():
        files = [path]
    else:
        raise _missing_file_error(path, "is not there")
    return [(file, kind or _format_of(file)) for file in files]


def _format_of(file: Path) -> str:
    if file.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[file.suffix.lower()]
    raise SecondaryInputFailed(
        f"The format of {file} cannot be told by its name.",
        rule=f"Names end with {', '.join(_SUFFIXES)}, or the format is said.",
        remedy=f"Add format = {INPUT_FORMATS[0]!r}, or one of {', '.join(map(repr, INPUT_FORMATS[1:]))}.",
        path=str(file),
    )


def _csv(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        check_input_columns(columns, list(reader.fieldnames or ()), str(file))
        for row in reader:
            if None in row or None in row.values():
                raise SecondaryInputFailed(
                    f"{file}, line {reader.line_num}: The row has another number of values than the heading.",
                    rule="Each row has as many values as there are columns.",
                    remedy="Correct the row; a comma within a value needs quotes around it.",
                    path=str(file),
                    line=reader.line_num,
                )
            yield {column: row[column] or None for column in columns}


def _json(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1 and line.lstrip().startswith("["):
                yield from _json_list(file, columns)
                return
            if line.strip():
                yield _object(file, number, line, columns)


def _json_list(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    try:
        listed = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise _not_json(file, getattr(error, "lineno", 1), str(error)) from error
    for row in listed:
        yield _pick_columns(file, 1, row, columns)


def _object(file: Path, number: int, line: str, columns: Sequence[str]) -> UnitRow:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _not_json(file, number, str(error)) from error
    return _pick_columns(file, number, row, columns)


def _pick_columns(file: Path, number: int, row: Any, columns: Sequence[str]) -> UnitRow:
    if not isinstance(row, dict):
        raise _not_json(file, number, "it is no object")
    # A key that is missing in an object is NULL, as Spark reads it.
    return {column: row.get(column) for column in columns}


def _parquet(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as parquet:
            check_input_columns(columns, parquet.schema_arrow.names, str(file))
            for batch in parquet.iter_batches(columns=list(columns)):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise _unreadable_file_error(file, error) from error


def _avro(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    try:
        import fastavro
    except ImportError as error:
        raise _missing_package_error("fastavro", f"{file} is Avro", 'pip install "floodmark[kafka]"') from error
    with file.open("rb") as data:
        try:
            reader: Any = fastavro.reader(data)
            schema: Any = reader.writer_schema
        except (ValueError, KeyError) as error:
            raise _unreadable_file_error(file, error) from error
        check_input_columns(columns, [one["name"] for one in schema.get("fields", ())], str(file))
        for row in reader:
            yield {column: row[column] for column in columns}


def _delta(path: str | Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    try:
        deltalake = import_module("deltalake")
    except ImportError as error:
        raise _missing_package_error(
            "deltalake", f"{path} is a Delta table", 'pip install "floodmark[delta]"'
        ) from error
    try:
        dataset: Any = deltalake.DeltaTable(str(path)).to_pyarrow_dataset()
    except Exception as error:  # its own tree of errors is not part of its promise
        raise _unreadable_file_error(path, error) from error
    check_input_columns(columns, dataset.schema.names, str(path))
    for batch in dataset.to_batches(columns=list(columns)):
        yield from batch.to_pylist()


_READERS: Final[Mapping[str, Callable[[Path, Sequence[str]], Iterator[UnitRow]]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "avro": _avro,
    "delta": _delta,
}


def _missing_file_error(path: str | Path, fact: str) -> SecondaryInputFailed:
    return SecondaryInputFailed(
        f"{path} {fact}.",
        rule="Units are read from a file, a folder of files or a table before a plan is made.",
        remedy="Correct the path, or run first what writes it.",
        path=str(path),
    )


def _unreadable_file_error(path: str | Path, error: Exception) -> SecondaryInputFailed:
    said = (str(error).splitlines() or [""])[0]
    return SecondaryInputFailed(
        f"{path} cannot be read: {type(error).__name__}: {said}.",
        rule="Units are read from a file, a folder of files or a table before a plan is made.",
        remedy="See whether it is of the format that its name, or the key format, says.",
        path=str(path),
    )


def _not_json(file: Path, line: int, why: str) -> SecondaryInputFailed:
    return SecondaryInputFailed(
        f"{file}, line {line}: It is no JSON object: {why}.",
        rule="Each line is one JSON object, or the file is one list of them.",
        remedy="Correct the line.",
        path=str(file),
        line=line,
    )


def _missing_package_error(package: str, fact: str, command: str) -> MissingPackage:
    return MissingPackage(
        f"{fact}, and the package {package} cannot be loaded.",
        rule="It is needed to read this.",
        remedy=f"Install it: {command}; or give the units as CSV, JSON lines or Parquet.",
        package=package,
    )
