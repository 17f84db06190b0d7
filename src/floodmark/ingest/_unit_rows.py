"""Rows of a file or a folder of files, from which units are made: CSV, JSON lines, Parquet, Avro, Delta."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from floodmark._util.text import did_you_mean
from floodmark.errors import MissingPackage, SecondaryInputFailed

UnitRow = Mapping[str, Any]
FORMATS: Final = ("csv", "json", "parquet", "avro", "delta")
_SUFFIXES: Final = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".avro": "avro",
}


def rows_of_files(path: str | Path, columns: Sequence[str], kind: str | None = None) -> Iterator[UnitRow]:
    """Yield rows with these columns: of a file, of all files in a folder in the order of their names, of a Delta table.

    The kind is that of the file's name, unless it is said. Of CSV each value is a text, and an empty one is NULL.
    """
    if "://" in str(path) and kind in (None, "delta"):
        yield from _delta(str(path), columns)
        return
    for file, known in _listed(Path(path), kind):
        try:
            yield from _READERS[known](file, columns)
        except (OSError, UnicodeError, csv.Error) as error:
            raise _unreadable(file, error) from error


def check_columns(columns: Sequence[str], there: Sequence[str], where: str) -> None:
    """Refuse columns that are not there.

    >>> check_columns(["idd"], ["id", "status"], "ids.csv")
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


def _listed(path: Path, kind: str | None) -> list[tuple[Path, str]]:
    is_delta = (path / "_delta_log").is_dir()
    if kind == "delta" and not is_delta:
        raise _missing(path, "is no Delta table, or none yet")
    if is_delta and kind in (None, "delta"):
        return [(path, "delta")]
    if path.is_dir():
        # Names that begin like these are bookkeeping of Spark, Hadoop and Delta.
        files = sorted(one for one in path.rglob("*") if one.is_file() and one.name[0] not in "._")
        if not files:
            raise _missing(path, "is a folder without files")
    elif path.is_file():
        files = [path]
    else:
        raise _missing(path, "is not there")
    return [(file, kind or _format_of(file)) for file in files]


def _format_of(file: Path) -> str:
    if file.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[file.suffix.lower()]
    raise SecondaryInputFailed(
        f"The format of {file} cannot be told by its name.",
        rule=f"Names end with {', '.join(_SUFFIXES)}, or the format is said.",
        remedy=f"Add format = {FORMATS[0]!r}, or one of {', '.join(map(repr, FORMATS[1:]))}.",
        path=str(file),
    )


def _csv(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    with file.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.DictReader(lines, strict=True)
        check_columns(columns, list(reader.fieldnames or ()), str(file))
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
        yield _chosen(file, 1, row, columns)


def _object(file: Path, number: int, line: str, columns: Sequence[str]) -> UnitRow:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise _not_json(file, number, str(error)) from error
    return _chosen(file, number, row, columns)


def _chosen(file: Path, number: int, row: Any, columns: Sequence[str]) -> UnitRow:
    if not isinstance(row, dict):
        raise _not_json(file, number, "it is no object")
    # A key that is missing in an object is NULL, as Spark reads it.
    return {column: row.get(column) for column in columns}


def _parquet(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as parquet:
            check_columns(columns, parquet.schema_arrow.names, str(file))
            for batch in parquet.iter_batches(columns=list(columns)):
                yield from batch.to_pylist()
    except pa.ArrowException as error:
        raise _unreadable(file, error) from error


def _avro(file: Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    try:
        import fastavro
    except ImportError as error:
        raise _lacking("fastavro", f"{file} is Avro", 'pip install "floodmark[kafka]"') from error
    with file.open("rb") as data:
        try:
            reader: Any = fastavro.reader(data)
            schema: Any = reader.writer_schema
        except (ValueError, KeyError) as error:
            raise _unreadable(file, error) from error
        check_columns(columns, [one["name"] for one in schema.get("fields", ())], str(file))
        for row in reader:
            yield {column: row[column] for column in columns}


def _delta(path: str | Path, columns: Sequence[str]) -> Iterator[UnitRow]:
    try:
        deltalake = import_module("deltalake")
    except ImportError as error:
        raise _lacking("deltalake", f"{path} is a Delta table", 'pip install "floodmark[delta]"') from error
    try:
        dataset: Any = deltalake.DeltaTable(str(path)).to_pyarrow_dataset()
    except Exception as error:  # its own tree of errors is not part of its promise
        raise _unreadable(path, error) from error
    check_columns(columns, dataset.schema.names, str(path))
    for batch in dataset.to_batches(columns=list(columns)):
        yield from batch.to_pylist()


_READERS: Final[Mapping[str, Callable[[Path, Sequence[str]], Iterator[UnitRow]]]] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "avro": _avro,
    "delta": _delta,
}


def _missing(path: str | Path, fact: str) -> SecondaryInputFailed:
    return SecondaryInputFailed(
        f"{path} {fact}.",
        rule="Units are read from a file, a folder of files or a table before a plan is made.",
        remedy="Correct the path, or run first what writes it.",
        path=str(path),
    )


def _unreadable(path: str | Path, error: Exception) -> SecondaryInputFailed:
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


def _lacking(package: str, fact: str, command: str) -> MissingPackage:
    return MissingPackage(
        f"{fact}, and the package {package} cannot be loaded.",
        rule="It is needed to read this.",
        remedy=f"Install it: {command}; or give the units as CSV, JSON lines or Parquet.",
        package=package,
    )
