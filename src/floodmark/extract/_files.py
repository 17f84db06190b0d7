"""Files as they were listed once: which there are, when each is, and which of them are of a range."""

import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

from floodmark.errors import FloodmarkError, InvalidOption, SourceChanged, UnitsInvalid
from floodmark.extract._files_paths import escaped, expand
from floodmark.extract._files_times import named_time
from floodmark.ingest import FilesSource, Range, Row, Unit
from floodmark.ingest._calendar import zone_of
from floodmark.ingest._variables import names_in, substitute

FILE: Final = "_file"
"""The column that rows of files get: the path of their file."""

_SHOWN: Final = 3
# With each of these Spark would read something else than what was listed, and not say so.
_NOT_OURS: Final = (
    *("path", "paths", "pathglobfilter", "modifiedafter", "modifiedbefore", "recursivefilelookup"),
    *("ignoremissingfiles", "ignorecorruptfiles", "__globpaths__"),
)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file as it was when it was listed."""

    path: str
    """Absolute."""
    size: int
    modified: int
    """Microseconds."""
    time: int | None = None
    """What places it in time, in microseconds; None if its rows have times of their own."""


def list_files(source: FilesSource, zone: str, unit: Unit) -> tuple[ListedFile, ...]:
    """Return the files of a unit that are there now, in the order of their times.

    `zone` is that of the job: it counts where the source has none. A pattern may find nothing; a path without a
    pattern must be there, a directory must be readable, and where the time is in the name each name must have one.

    >>> list_files(FilesSource(paths=("nowhere/*.csv",), format="csv"), "UTC", Unit.of({}))
    ()
    """
    check_options(source)
    found = expand([_path_of(path, unit) for path in source.paths])
    if source.time == "column":
        return tuple(ListedFile(*file) for file in sorted(found))
    if source.time == "modified":
        listed = [ListedFile(*file, file.modified) for file in found]
    else:
        assert source.name_pattern is not None
        assert source.name_format is not None
        time_of = named_time(source.name_pattern, source.name_format, zone_of(source.zone or zone))
        listed = [ListedFile(*file, time_of(file.path)) for file in sorted(found)]
    return tuple(sorted(listed, key=lambda file: (file.time, file.path)))


def files_of(listed: Sequence[ListedFile], of: Range) -> tuple[ListedFile, ...]:
    """Return the files whose times are in a range, of all as `list_files` gives them; all, if only rows have times.

    >>> files = [ListedFile(name, 1, 0, time) for name, time in (("/a", 5), ("/b", 7), ("/c", 9))]
    >>> [file.path for file in files_of(files, Range(5, 9))]
    ['/a', '/b']
    """
    if not listed or listed[0].time is None:
        return tuple(listed)
    first, last = (bisect_left(listed, end, key=lambda file: file.time or 0) for end in of)
    return tuple(listed[first:last])


def changed(listed: Iterable[ListedFile]) -> list[ListedFile]:
    """Return those files that are not as they were listed any more, or are gone.

    >>> changed([ListedFile("/nowhere/a.csv", 1, 0)])
    [ListedFile(path='/nowhere/a.csv', size=1, modified=0, time=None)]
    """
    return [file for file in listed if _state(file.path) != (file.size, file.modified)]


def require_unchanged(listed: Iterable[ListedFile]) -> None:
    """Refuse what was read of files that have been changed since they were listed.

    >>> require_unchanged([ListedFile("/nowhere/a.csv", 1, 0)])
    Traceback (most recent call last):
    floodmark.errors.SourceChanged: '/nowhere/a.csv' is gone. ... [source-changed]
    """
    others = changed(listed)
    if not others:
        return
    gone = [file.path for file in others if _state(file.path) is None]
    paths = [*gone, *(file.path for file in others if file.path not in gone)]
    more = f", and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    names = ", ".join(map(repr, paths[:_SHOWN])) + more
    what = "gone" if gone else "not as it was listed" if len(paths) == 1 else "not as they were listed"
    if gone and len(gone) < len(paths):
        what = "gone or not as listed"
    raise SourceChanged(
        f"{names} {'is' if len(paths) == 1 else 'are'} {what}.",
        rule="The files of a cell stay as they are from when they are listed until the cell is read.",
        remedy="Run the job again: it lists them anew. Write files elsewhere, and move them when they are whole.",
        paths=tuple(paths),
    )


@dataclass(frozen=True, slots=True)
class FileManifest:
    """The files of all units of a run, as they were listed when it began: what comes later is of a later run.

    >>> source = FilesSource(paths=("nowhere/*.csv",), format="csv")
    >>> FileManifest.listed(source, "UTC", [Unit.of({})]).files
    {'{}': ()}
    """

    files: Mapping[str, tuple[ListedFile, ...] | FloodmarkError]
    """By the key of a unit: its files, or why they could not be listed."""

    @classmethod
    def listed(cls, source: FilesSource, zone: str, units: Iterable[Unit]) -> Self:
        """List the files of each unit once. What is wrong with one of them is kept, and fails its own rows only."""
        check_options(source)
        found: dict[str, tuple[ListedFile, ...] | FloodmarkError] = {}
        for unit in units:
            if unit.key not in found:
                try:
                    found[unit.key] = list_files(source, zone, unit)
                except FloodmarkError as error:
                    found[unit.key] = error
        return cls(found)

    def of(self, row: Row) -> tuple[ListedFile, ...]:
        """Return the files of a row of the plan, or raise why there are none."""
        files = self.files[row.unit.key]
        if isinstance(files, FloodmarkError):
            raise files
        return files_of(files, row.range)


def check_options(source: FilesSource) -> None:
    """Refuse options of the reader that decide which files are read.

    >>> check_options(FilesSource(paths=("x/*.csv",), format="csv", options={"pathGlobFilter": "*.csv"}))
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The source has the option 'pathGlobFilter'. ... [invalid-option]
    """
    for name in source.options:
        if name.lower() in _NOT_OURS:
            raise InvalidOption(
                f"The source has the option {name!r}.",
                rule="Which files are read is decided when they are listed, and each of them is read whole.",
                remedy="Leave it out, and write the paths and patterns that are meant.",
                option="options",
                name=name,
            )


def _path_of(path: str, unit: Unit) -> str:
    named = names_in(path)
    if ranges := [name for name in named if name.startswith("range.")]:
        raise InvalidOption(
            f"The path {path!r} names {{{{{ranges[0]}}}}}.",
            rule="Files are listed once for all ranges of a unit; which are of a range is told by their times.",
            remedy="Write a pattern in its place; a time in the path is found by name_pattern.",
            option="paths",
            path=path,
        )
    known: dict[str, str] = {}
    for name, value in unit.fields.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if f"unit.{name}" in named and (value is None or text in ("", ".", "..") or "/" in text or "\0" in text):
            raise UnitsInvalid(
                f"The unit {unit} has {name!r} = {value!r}.",
                rule="A field that stands in a path is a name, or a part of one: it never leads elsewhere.",
                remedy="Correct the unit; give it two fields where there are two directories.",
                unit=unit.key,
                field=name,
            )
        known[f"unit.{name}"] = escaped(text)
    return str(substitute(path, known))


def _state(path: str) -> tuple[int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_size, seen.st_mtime_ns // 1000
