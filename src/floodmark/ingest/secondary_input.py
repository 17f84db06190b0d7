"""Reads the units of a job from its secondary input: files, a Delta table, or a table or query of a database."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from floodmark._util.codec import parse_json
from floodmark._util.text import did_you_mean
from floodmark.errors import MissingPackage, SecondaryInputFailed, UnitsInvalid
from floodmark.ingest.database import open_engine, url_without_credentials
from floodmark.ingest.job.job import Job
from floodmark.ingest.job.options import Secret
from floodmark.ingest.job.unit import INPUT_FORMATS, SecondaryInput, Unit, compile_filter, duplicate_unit_error


def read_units(secondary: SecondaryInput, environment: Mapping[str, str] | None = None) -> tuple[Unit, ...]:
    """Read the units of a secondary input, sorted by key because a table has no order."""
    units: dict[str, Unit] = {}
    for row in filter_rows(_input_rows(secondary, environment), secondary):
        unit = Unit.of(row)
        if unit.key in units and not secondary.distinct:
            raise duplicate_unit_error(
                unit, "Set distinct = true to drop duplicates, or add fields that tell the units apart."
            )
        units[unit.key] = unit
        if len(units) > secondary.most:
            raise UnitsInvalid(
                f"The secondary input has more than {secondary.most} units.",
                rule="The number of units is limited by `most`.",
                remedy="Add filters, or set a larger `most` in [units.input].",
                most=secondary.most,
            )
    if not units and not secondary.may_be_empty:
        raise SecondaryInputFailed(
            "The secondary input has no units.",
            rule="An empty list would retire all units of the job.",
            remedy="Check path and filters of [units.input]; set may_be_empty = true if no units are expected.",
        )
    return tuple(units[key] for key in sorted(units))


def with_units(job: Job, environment: Mapping[str, str] | None = None) -> Job:
    """Return the job with the units of its secondary input, if it has one that is not read yet.

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
        if all(row[column] is not None and regex.fullmatch(_filter_text(row[column])) for column, regex in filters):
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
    """Convert a value to one that a unit can have."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, Decimal | UUID):
        return str(value)
    raise UnitsInvalid(
        f"The field {name!r} of a unit has the type {type(value).__name__}.",
        rule="A field of a unit is a string, a number, a boolean, a date or time, or NULL.",
        remedy="Use another column, or a query that converts it to text.",
        field=name,
    )


def read_query_rows(
    url: str, columns: Sequence[str], *, table: str | None = None, query: str | None = None, password: str | None = None
) -> Iterator[UnitRow]:
    """Yield these columns of the rows of a table or query; the database is only read."""
    from sqlalchemy import text
    from sqlalchemy.exc import SQLAlchemyError

    engine = open_engine(url, password)
    try:
        with engine.connect().execution_options(stream_results=True, max_row_buffer=1_000) as connection:
            # Escape colons, which start a bind parameter.
            statement: Any = text(query.replace(":", r"\:")) if query is not None else _select_all(table or "")
            result = connection.execute(statement)
            check_input_columns(columns, list(result.keys()), "The query" if table is None else f"The table {table}")
            for row in result.mappings():
                yield {column: row[column] for column in columns}
    except SQLAlchemyError as error:
        # SQLAlchemy's message may contain parameters; the driver's does not.
        message = str(getattr(error, "orig", None) or error).splitlines() or [""]
        raise SecondaryInputFailed(
            f"The units cannot be read from {url_without_credentials(url)}: {message[0]}.",
            rule="The database of the units must be readable before a plan is made.",
            remedy="Check that the database runs, and url, table and query of [units.input].",
        ) from error
    finally:
        engine.dispose()


def _select_all(table: str) -> Any:
    from sqlalchemy import literal_column, select
    from sqlalchemy.sql import table as table_clause

    schema, _, name = table.rpartition(".")
    return select(literal_column("*")).select_from(table_clause(name, schema=schema or None))


_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".avro": "avro",
}


def read_file_rows(path: str | Path, columns: Sequence[str], kind: str | None = None) -> Iterator[UnitRow]:
    """Yield these columns of the rows of a file, of all files of a folder by name, or of a Delta table.

    `kind` overrides the format given by the file name. CSV values are strings; an empty one is NULL.
    """
    if "://" in str(path) and kind in (None, "delta"):
        yield from _read_delta(str(path), columns)
        return
    for file, file_format in _list_files(Path(path), kind):
        try:
            yield from _READERS[file_format](file, columns)
        except (OSError, UnicodeError, csv.Error) as error:
            raise _unreadable_file_error(file, error) from error


def check_input_columns(columns: Sequence[str], available: Sequence[str], where: str) -> None:
    """Raise `SecondaryInputFailed` for a column that does not exist.

    >>> check_input_columns(["idd"], ["id", "status"], "ids.csv")
    Traceback (most recent call last):
    floodmark.errors.SecondaryInputFailed: ids.csv has no column 'idd'. ... Did you mean 'id'? ...
    """
    for column in columns:
        if column not in available:
            raise SecondaryInputFailed(
                f"{where} has no column {column!r}.",
                rule="Fields and filters must name existing columns.",
                remedy=did_you_mean(column, available, otherwise=f"Its columns: {', '.join(available) or 'none'}."),
                column=column,
            )


def _list_files(path: Path, kind: str | None) -> list[tuple[Path, str]]:
    is_delta = (path / "_delta_log").is_dir()
    if kind == "delta" and not is_delta:
        raise _missing_file_error(path, "is not a Delta table")
    if is_delta and kind in (None, "delta"):
        return [(path, "delta")]
    if path.is_dir():
        # Skip metadata files of Spark, Hadoop and Delta, whose names start with . or _
        files = sorted(file for file in path.rglob("*") if file.is_file() and file.name[0] not in "._")
        if not files:
            raise _missing_file_error(path, "is an empty folder")
    elif path.is_file():
        files = [path]
    else:
        raise _missing_file_error(path, "does not exist")
    return [(file, kind or _format_of(file)) for file in files]


def _format_of(file: Path) -> str:
    if file.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[file.suffix.lower()]
    raise SecondaryInputFailed(
        f"The format of {file} is unknown.",
        rule=f"The file name must end with {', '.join(_SUFFIXES)}, or `format` must be set.",
        remedy=f"Set format to one of {', '.join(map(repr, INPUT_FORMATS))}.",
        path=str(file),
    )


def _read_csv(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        check_input_columns(columns, list(reader.fieldnames or ()), str(file))
        for row in reader:
            if None in row or None in row.values():
                raise SecondaryInputFailed(
                    f"{file}, line {reader.line_num}: The number of values differs from the header.",
                    rule="Each row must have one value per column.",
                    remedy="Fix the row; put values that contain commas in quotes.",
                    path=str(file),
                    line=reader.line_num,
                )
            yield {column: row[column] or None for column in columns}


def _read_json(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if number == 1 and line.lstrip().startswith("["):
                yield from _read_json_list(file, columns)
                return
            if line.strip():
                yield _parse_json_line(file, number, line, columns)


def _read_json_list(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    try:
        rows = parse_json(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise _invalid_json_error(file, getattr(error, "lineno", 1), str(error)) from error
    for row in rows:
        yield _pick_columns(file, 1, row, columns)


def _parse_json_line(file: Path, number: int, line: str, columns: Sequence[str]) -> UnitRow:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise _invalid_json_error(file, number, str(error)) from error
    return _pick_columns(file, number, row, columns)


def _pick_columns(file: Path, number: int, row: Any, columns: Sequence[str]) -> UnitRow:
    if not isinstance(row, dict):
        raise _invalid_json_error(file, number, "not an object")
    # A missing key is NULL, as in Spark.
    return {column: row.get(column) for column in columns}


def _read_parquet(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as parquet:
            check_input_columns(columns, parquet.schema_arrow.names, str(file))
            for batch in parquet.iter_batches(columns=list(columns)):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise _unreadable_file_error(file, error) from error


def _read_avro(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
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
        check_input_columns(columns, [field["name"] for field in schema.get("fields", ())], str(file))
        for row in reader:
            yield {column: row[column] for column in columns}


def _read_delta(path: str | Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    try:
        deltalake = import_module("deltalake")
    except ImportError as error:
        raise _missing_package_error(
            "deltalake", f"{path} is a Delta table", 'pip install "floodmark[delta]"'
        ) from error
    try:
        dataset: Any = deltalake.DeltaTable(str(path)).to_pyarrow_dataset()
    except Exception as error:  # the exception classes of deltalake are not a stable API
        raise _unreadable_file_error(path, error) from error
    check_input_columns(columns, dataset.schema.names, str(path))
    for batch in dataset.to_batches(columns=list(columns)):
        yield from batch.to_pylist()


_READERS: Final[Mapping[str, Callable[[Path, Sequence[str]], Iterator[UnitRow]]]] = {
    "csv": _read_csv,
    "json": _read_json,
    "parquet": _read_parquet,
    "avro": _read_avro,
    "delta": _read_delta,
}


def _missing_file_error(path: str | Path, fact: str) -> SecondaryInputFailed:
    return SecondaryInputFailed(
        f"{path} {fact}.",
        rule="The file, folder or table of the units must exist before a plan is made.",
        remedy="Check `path` of [units.input], or run the job that writes it first.",
        path=str(path),
    )


def _unreadable_file_error(path: str | Path, error: Exception) -> SecondaryInputFailed:
    message = (str(error).splitlines() or [""])[0]
    return SecondaryInputFailed(
        f"{path} cannot be read: {type(error).__name__}: {message}.",
        rule="The file, folder or table of the units must be readable before a plan is made.",
        remedy="Check that its content has the format of its name, or set `format` in [units.input].",
        path=str(path),
    )


def _invalid_json_error(file: Path, line: int, why: str) -> SecondaryInputFailed:
    return SecondaryInputFailed(
        f"{file}, line {line}: Not a JSON object: {why}.",
        rule="A JSON file has one object per line, or is one list of objects.",
        remedy="Fix the line, or convert the file to JSON lines.",
        path=str(file),
        line=line,
    )


def _missing_package_error(package: str, fact: str, command: str) -> MissingPackage:
    return MissingPackage(
        f"{fact}, and the package {package} is not installed.",
        rule=f"Reading this format needs {package}.",
        remedy=f"Install it: {command}; or provide the units as CSV, JSON lines or Parquet.",
        package=package,
    )
