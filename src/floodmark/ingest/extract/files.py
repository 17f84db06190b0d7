"""Files of a source: which exist when a run lists them, the time of each, and which belong to a range.

| path | files |
|---|---|
| `*`, `?`, `[abc]`, `[!abc]` | as in a shell, within one name of a path |
| `**` as a whole name | any number of directories, including none |
| `[*]`, `[{]` | the character itself |
| a directory | all files in it and in the directories below |

Names that begin with `.` or `_` are skipped, as in Spark, and so are files that Hadoop is still copying. A directory
with such a name is found if the path names it, or by a pattern that begins with the same character; a file is not,
since Spark would not read it. A link stands for the file it points to, and is skipped if that file is found too.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import translate
from functools import cache
from stat import S_ISDIR, S_ISREG
from typing import Final, NamedTuple, Self
from zoneinfo import ZoneInfo

from floodmark.errors import (
    FileMissing,
    FileTimeUnknown,
    FloodmarkError,
    InvalidOption,
    SourceChanged,
    SourceFailed,
    SourceRefused,
    UnitsInvalid,
)
from floodmark.ingest.calendar.clock import EPOCH, MICROSECOND, wall_to_micros, zone_of
from floodmark.ingest.calendar.ranges import Range
from floodmark.ingest.job.source import FilesSource
from floodmark.ingest.job.unit import Unit
from floodmark.ingest.job.variables import substitute_variables, variable_names
from floodmark.ingest.planning.plan import PlannedRange

FILE_COLUMN: Final = "_file"
"""The column added to rows of files: the path of their file."""

_MOST_SHOWN: Final = 3
# With these options Spark would silently read other files than those listed.
_REFUSED_OPTIONS: Final = (
    *("path", "paths", "pathglobfilter", "modifiedafter", "modifiedbefore", "recursivefilelookup"),
    *("ignoremissingfiles", "ignorecorruptfiles", "__globpaths__"),
)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file with the size and times that it had when it was listed."""

    path: str
    """The absolute path."""
    size: int
    modified: int
    """In microseconds since the epoch."""
    time: int | None = None
    """The time of the file, in microseconds; None if a column of its rows has the time."""


def list_files(source: FilesSource, zone: str, unit: Unit) -> tuple[ListedFile, ...]:
    """Return the files of a unit that exist now, in the order of their times.

    `zone` is the job's; the source's own zone takes precedence. A pattern may match nothing. A path without a pattern
    must exist, a directory must be readable, and if the time is in the name, each name must have one.

    >>> list_files(FilesSource(paths=("nowhere/*.csv",), format="csv"), "UTC", Unit.of({}))
    ()
    """
    check_reader_options(source)
    files = find_files([_path_for_unit(path, unit) for path in source.paths])
    if source.time == "column":
        return tuple(ListedFile(*file) for file in sorted(files))
    if source.time == "modified":
        listed = [ListedFile(*file, file.modified) for file in files]
    else:
        assert source.name_pattern is not None
        assert source.name_format is not None
        time_of = time_from_name(source.name_pattern, source.name_format, zone_of(source.zone or zone))
        listed = [ListedFile(*file, time_of(file.path)) for file in sorted(files)]
    return tuple(sorted(listed, key=lambda file: (file.time, file.path)))


def files_in_range(listed: Sequence[ListedFile], span: Range) -> tuple[ListedFile, ...]:
    """Return the files of `list_files` whose times are in a range; all of them if only rows have times.

    >>> files = [ListedFile(name, 1, 0, time) for name, time in (("/a", 5), ("/b", 7), ("/c", 9))]
    >>> [file.path for file in files_in_range(files, Range(5, 9))]
    ['/a', '/b']
    """
    if not listed or listed[0].time is None:
        return tuple(listed)
    first, last = (bisect_left(listed, end, key=lambda file: file.time or 0) for end in span)
    return tuple(listed[first:last])


def changed_files(listed: Iterable[ListedFile]) -> list[ListedFile]:
    """Return the files that were changed or removed since they were listed.

    >>> changed_files([ListedFile("/nowhere/a.csv", 1, 0)])
    [ListedFile(path='/nowhere/a.csv', size=1, modified=0, time=None)]
    """
    return [file for file in listed if _size_and_time(file.path) != (file.size, file.modified)]


def require_unchanged(listed: Iterable[ListedFile]) -> None:
    """Raise SourceChanged if a file was changed or removed since it was listed. Call it after reading the files.

    >>> require_unchanged([ListedFile("/nowhere/a.csv", 1, 0)])
    Traceback (most recent call last):
    floodmark.errors.SourceChanged: '/nowhere/a.csv' was removed after it was listed. ... [source-changed]
    """
    changed = changed_files(listed)
    if not changed:
        return
    removed = [file.path for file in changed if _size_and_time(file.path) is None]
    paths = [*removed, *(file.path for file in changed if file.path not in removed)]
    more = f", and {len(paths) - _MOST_SHOWN} more" if len(paths) > _MOST_SHOWN else ""
    names = ", ".join(map(repr, paths[:_MOST_SHOWN])) + more
    what = "removed" if len(removed) == len(paths) else "changed or removed" if removed else "changed"
    were_listed = f"was {what} after it was listed" if len(paths) == 1 else f"were {what} after they were listed"
    raise SourceChanged(
        f"{names} {were_listed}.",
        rule="The files of a cell do not change between the listing and the end of reading.",
        remedy="Run the job again: it lists the files again. Write files in another directory and move them when they "
        "are complete.",
        paths=tuple(paths),
    )


@dataclass(frozen=True, slots=True)
class FileManifest:
    """The files of all units of a run, listed when it began. Files that are added later belong to a later run.

    >>> source = FilesSource(paths=("nowhere/*.csv",), format="csv")
    >>> FileManifest.listed(source, "UTC", [Unit.of({})]).files
    {'{}': ()}
    """

    files: Mapping[str, tuple[ListedFile, ...] | FloodmarkError]
    """By the key of a unit: its files, or the error of listing them."""

    @classmethod
    def listed(cls, source: FilesSource, zone: str, units: Iterable[Unit]) -> Self:
        """List the files of each unit once. The error of a unit is kept, and fails only the ranges of that unit."""
        check_reader_options(source)
        files: dict[str, tuple[ListedFile, ...] | FloodmarkError] = {}
        for unit in units:
            if unit.key not in files:
                try:
                    files[unit.key] = list_files(source, zone, unit)
                except FloodmarkError as error:
                    files[unit.key] = error
        return cls(files)

    def files_of(self, row: PlannedRange) -> tuple[ListedFile, ...]:
        """Return the files of a planned range, or raise the error of listing them."""
        files = self.files[row.unit.key]
        if isinstance(files, FloodmarkError):
            raise files
        return files_in_range(files, row.range)


def check_reader_options(source: FilesSource) -> None:
    """Refuse reader options that change which files Spark reads.

    >>> check_reader_options(FilesSource(paths=("x/*.csv",), format="csv", options={"pathGlobFilter": "*.csv"}))
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The source has the option 'pathGlobFilter'. ... [invalid-option]
    """
    for name in source.options:
        if name.lower() in _REFUSED_OPTIONS:
            raise InvalidOption(
                f"The source has the option {name!r}.",
                rule="paths alone decide which files are read, and each file is read completely.",
                remedy=f"Remove {name!r} from options, and write patterns in paths that match only the right files.",
                option="options",
                name=name,
            )


def _path_for_unit(path: str, unit: Unit) -> str:
    variables = variable_names(path)
    if ranges := [name for name in variables if name.startswith("range.")]:
        raise InvalidOption(
            f"The path {path!r} names {{{{{ranges[0]}}}}}.",
            rule="Files are listed once for all ranges of a unit; their times decide to which range they belong.",
            remedy="Write a pattern such as * in its place, and set name_pattern to find the time in the path.",
            option="paths",
            path=path,
        )
    values: dict[str, str] = {}
    for name, value in unit.fields.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if f"unit.{name}" in variables and (value is None or text in ("", ".", "..") or "/" in text or "\0" in text):
            raise UnitsInvalid(
                f"The unit {unit} has {name!r} = {value!r}.",
                rule="A field that is used in a path is a file name or part of one, without a slash.",
                remedy="Change the unit's value; for two directories, use two fields in the path.",
                unit=unit.key,
                field=name,
            )
        values[f"unit.{name}"] = escape_pattern(text)
    return str(substitute_variables(path, values))


def _size_and_time(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns // 1000


def time_from_name(pattern: str, name_format: str, zone: ZoneInfo) -> Callable[[str], int]:
    """Return a function from a path to the time in its name, in microseconds.

    The pattern is searched in the file name, or in the whole path if the pattern has a `/`. A time without an offset is
    in the zone; of two possible moments when clocks are put back it is the later one, at which the file is complete.

    >>> from floodmark.ingest.calendar.clock import zone_of
    >>> time_of = time_from_name("orders-(?P<time>[0-9]{8})", "%Y%m%d", zone_of("UTC"))
    >>> time_of("/drops/orders-19700102.csv")
    86400000000
    >>> time_of("/drops/orders.csv")
    Traceback (most recent call last):
    floodmark.errors.FileTimeUnknown: The name of '/drops/orders.csv' has no time. ... [file-time-unknown]
    """
    search, in_whole_path = re.compile(pattern).search, "/" in pattern
    cache_by_text: dict[str, int] = {}

    def time_of(path: str) -> int:
        match = search(path if in_whole_path else os.path.basename(path))
        text = None if match is None else match["time"]
        if text is None:
            raise _unknown_time_error(
                path,
                f"The name of {path!r} has no time.",
                f"name_pattern, {pattern!r}, finds a time in the name of each file; without it no range has the file.",
            )
        if text not in cache_by_text:
            try:
                cache_by_text[text] = _to_micros(datetime.strptime(text, name_format), zone)  # noqa: DTZ007
            except (ValueError, OverflowError, re.error) as error:
                raise _unknown_time_error(
                    path,
                    f"The name of {path!r} has {text!r} where its time should be: {error}.",
                    f"The time in a name has the format name_format, {name_format!r}, as for strptime.",
                ) from error
        return cache_by_text[text]

    return time_of


def _to_micros(parsed: datetime, zone: ZoneInfo) -> int:
    if parsed.tzinfo is not None:
        return (parsed - EPOCH) // MICROSECOND
    return wall_to_micros(parsed.replace(fold=1), zone)


def _unknown_time_error(path: str, fact: str, rule: str) -> FileTimeUnknown:
    return FileTimeUnknown(
        fact,
        rule=rule,
        remedy="Correct name_pattern or name_format in [source], rename the file, or write paths that exclude it.",
        path=path,
    )


_ESCAPED: Final = re.compile(r"\[([*?{}[])\]")
_WILDCARD: Final = re.compile(r"[*?]|\[.+\]")
_ALTERNATIVES: Final = re.compile(r"\{[^{}/]*,[^{}/]*\}")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class FoundFile(NamedTuple):
    """A file that exists."""

    path: str
    size: int
    modified: int
    """In microseconds since the epoch."""


class _SearchPosition(NamedTuple):
    """A path that a search has reached."""

    path: str
    is_linked: bool
    """Whether the search has followed a link to it."""


def escape_pattern(text: str) -> str:
    """Return a pattern that matches only this text.

    >>> escape_pattern("a[1]*")
    'a[[]1][*]'
    """
    return re.sub(r"([*?{}[])", r"[\1]", text)


def find_files(paths: Iterable[str]) -> list[FoundFile]:
    """Return the files of paths and patterns, each once, in no particular order.

    A pattern may match nothing. A path without a pattern must exist.

    >>> find_files(["nowhere.csv"])
    Traceback (most recent call last):
    floodmark.errors.FileMissing: There is no '.../nowhere.csv'. ... [file-missing]
    """
    direct: dict[str, FoundFile] = {}
    linked: dict[str, FoundFile] = {}
    for path in paths:
        names = [name for name in os.path.abspath(_local_path(path)).split(os.sep) if name]
        has_files = False
        try:
            for position in _expand_pattern(_SearchPosition(os.sep, False), names):
                for is_linked, file in _walk_files(position, frozenset()):
                    has_files = True
                    (linked if is_linked else direct)[file.path] = file
        except OSError as error:
            raise _unreadable_error(str(error.filename), error) from error
        if not has_files and not any(_is_pattern(name) for name in names):
            _require_directory(os.sep + os.sep.join(map(_unescape, names)))
    return [*direct.values(), *_reached_only_by_links(linked, direct)]


def _reached_only_by_links(linked: dict[str, FoundFile], direct: dict[str, FoundFile]) -> Iterator[FoundFile]:
    """Yield the linked files that were not found directly, each once."""
    if not linked:
        return
    real_directory = cache(os.path.realpath)
    seen = {os.path.join(real_directory(os.path.dirname(path)), os.path.basename(path)) for path in direct}
    for path, file in sorted(linked.items()):
        real_path = os.path.realpath(path)
        if real_path not in seen:
            seen.add(real_path)
            yield file


def _require_directory(path: str) -> None:
    if not os.path.isdir(path):
        raise FileMissing(
            f"There is no {path!r}.",
            rule="A path without a pattern names an existing file or directory.",
            remedy="Correct the path in paths, or write a pattern such as drops/*.csv, which may match nothing.",
            path=path,
        )


def _local_path(path: str) -> str:
    scheme = _SCHEME.match(path)
    if scheme is not None and scheme[1] != "file":
        raise InvalidOption(
            f"The path {path!r} is not on this machine.",
            rule="Files are in local directories: their sizes and times are checked before and after they are read.",
            remedy="Mount the object store as a directory, or copy the files to one, and write its path in paths.",
            option="paths",
            path=path,
        )
    local = path if scheme is None else path[scheme.end() :]
    if _is_pattern(local) and _ALTERNATIVES.search(_ESCAPED.sub("", local)):
        raise InvalidOption(
            f"The pattern {path!r} has alternatives in braces.",
            rule="Patterns are made of *, **, ? and [..].",
            remedy="Write several paths instead, or [{] for the character itself.",
            option="paths",
            path=path,
        )
    return local


def _is_pattern(name: str) -> bool:
    return _WILDCARD.search(_ESCAPED.sub("", name)) is not None


def _unescape(name: str) -> str:
    return _ESCAPED.sub(r"\1", name)


def _is_hidden(name: str) -> bool:
    # To Spark, a directory such as _day=1 is a partition.
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _expand_pattern(position: _SearchPosition, names: list[str]) -> Iterator[_SearchPosition]:
    """Yield the paths below a position that match the remaining names of a pattern."""
    for count, name in enumerate(names):
        if name == "**":
            rest = names[count + 1 :]
            for directory in _walk_directories(position, frozenset()) if rest else (position,):
                yield from _expand_pattern(directory, rest)
            return
        if _is_pattern(name):
            rest = names[count + 1 :]
            for match in _matching_entries(position, name):
                yield from _expand_pattern(match, rest)
            return
        position = _SearchPosition(os.path.join(position.path, _unescape(name)), position.is_linked)
    yield position


def _matching_entries(position: _SearchPosition, pattern: str) -> Iterator[_SearchPosition]:
    """Yield the entries of a directory that match a pattern."""
    matches, has_match = re.compile(translate(pattern)).match, False
    for entry in _entries(position.path):
        if matches(entry.name) and (entry.name[0] == pattern[0] or not _is_hidden(entry.name)):
            has_match = True
            yield _SearchPosition(entry.path, position.is_linked or entry.is_symlink())
    # As in a shell, a pattern without a match stands for the file of exactly that name.
    exact = os.path.join(position.path, pattern)
    if not has_match and os.path.lexists(exact):
        yield _SearchPosition(exact, position.is_linked)


def _walk_directories(position: _SearchPosition, above: frozenset[str]) -> Iterator[_SearchPosition]:
    """Yield a directory and all directories below it. `above` are the real paths entered so far."""
    above = _with_entered(position, above)
    yield position
    for entry in _entries(position.path):
        if not _is_hidden(entry.name) and entry.is_dir():
            inner = _SearchPosition(entry.path, position.is_linked or entry.is_symlink())
            if not _is_link_cycle(inner, above):
                yield from _walk_directories(inner, above)


def _walk_files(position: _SearchPosition, above: frozenset[str]) -> Iterator[tuple[bool, FoundFile]]:
    """Yield a file, or all files below a directory, each with whether it was reached by a link."""
    try:
        status = os.stat(position.path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(position.path):
            raise _broken_link_error(position.path) from None
        return
    if not S_ISDIR(status.st_mode):
        yield position.is_linked, _checked_file(position.path, status)
        return
    above = _with_entered(position, above)
    for entry in _entries(position.path):
        if _is_hidden(entry.name):
            continue
        inner = _SearchPosition(entry.path, position.is_linked or entry.is_symlink())
        if entry.is_file():
            try:
                yield inner.is_linked, _checked_file(entry.path, entry.stat())
            except FileNotFoundError:
                continue  # it was removed meanwhile
        elif not _is_link_cycle(inner, above):
            yield from _walk_files(inner, above)


def _with_entered(position: _SearchPosition, above: frozenset[str]) -> frozenset[str]:
    # Only links make cycles, so real paths are needed only for the start and for directories reached by a link.
    return above if above and not position.is_linked else above | {os.path.realpath(position.path)}


def _is_link_cycle(position: _SearchPosition, above: frozenset[str]) -> bool:
    """Return whether a link points to a directory above it, so that following it would never end."""
    if not position.is_linked:
        return False
    real_path = os.path.realpath(position.path)
    parent = os.path.realpath(os.path.dirname(position.path))
    prefix = real_path.rstrip(os.sep) + os.sep
    return any(path == real_path or path.startswith(prefix) for path in {*above, parent})


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []  # it was removed meanwhile, or is a file


def _checked_file(path: str, status: os.stat_result) -> FoundFile:
    if not S_ISREG(status.st_mode):
        raise SourceFailed(
            f"{path!r} is no regular file: it is a device, a pipe or a socket.",
            rule="Only regular files are read, since they have a size and can be read again.",
            remedy="Move it elsewhere, or write paths that exclude it.",
            path=path,
        )
    if _is_hidden(os.path.basename(path)):
        raise SourceFailed(
            f"{path!r} is a hidden file.",
            rule="Spark silently skips files whose names begin with . or _, or end with ._COPYING_.",
            remedy="Rename the file, or write paths that exclude it.",
            path=path,
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SourceFailed(
            f"The name {path!r} is not UTF-8.",
            rule="Spark reads only files whose names are UTF-8.",
            remedy="Rename the file, or write paths that exclude it.",
            path=ascii(path),
        ) from None
    return FoundFile(path, status.st_size, status.st_mtime_ns // 1000)


def _broken_link_error(path: str) -> FileMissing:
    return FileMissing(
        f"The link {path!r} points to a file that does not exist.",
        rule="The file that a link points to is read, so it must exist.",
        remedy="Remove the link, or restore the file.",
        path=path,
    )


def _unreadable_error(path: str, error: OSError) -> SourceRefused:
    return SourceRefused(
        f"{path!r} cannot be listed: {error.strerror or error}.",
        rule="Every directory that paths match is listed completely; otherwise files would be missed.",
        remedy="Give this user permission to read it, or write paths that exclude it.",
        path=path,
    )
