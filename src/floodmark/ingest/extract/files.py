"""Files as they were listed once: which there are, the time of each, and which of them are of a range.

| written | means |
|---|---|
| `*`, `?`, `[abc]`, `[!abc]` | what they mean in a shell, within one part of a path |
| `**` as a part of its own | any number of directories, also none |
| `[*]`, `[{]` | the character itself |
| a directory | all files in it, and in the directories below |

Names that begin with `.` or `_` are passed over, as Spark does, and so are files that Hadoop is still copying. Such a
directory can be named all the same, or by a pattern that begins so too; such a file cannot: Spark would not read it. A
link counts as the file it leads to, and is passed over where that one is found by its own name.
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
"""The column that rows of files get: the path of their file."""

_SHOWN: Final = 3
# With each of these Spark would read something else than what was listed, and not say so.
_REFUSED_OPTIONS: Final = (
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
    check_reader_options(source)
    found = find_files([_path_for_unit(path, unit) for path in source.paths])
    if source.time == "column":
        return tuple(ListedFile(*file) for file in sorted(found))
    if source.time == "modified":
        listed = [ListedFile(*file, file.modified) for file in found]
    else:
        assert source.name_pattern is not None
        assert source.name_format is not None
        time_of = time_from_name(source.name_pattern, source.name_format, zone_of(source.zone or zone))
        listed = [ListedFile(*file, time_of(file.path)) for file in sorted(found)]
    return tuple(sorted(listed, key=lambda file: (file.time, file.path)))


def files_in_range(listed: Sequence[ListedFile], of: Range) -> tuple[ListedFile, ...]:
    """Return the files whose times are in a range, of all as `list_files` gives them; all, if only rows have times.

    >>> files = [ListedFile(name, 1, 0, time) for name, time in (("/a", 5), ("/b", 7), ("/c", 9))]
    >>> [file.path for file in files_in_range(files, Range(5, 9))]
    ['/a', '/b']
    """
    if not listed or listed[0].time is None:
        return tuple(listed)
    first, last = (bisect_left(listed, end, key=lambda file: file.time or 0) for end in of)
    return tuple(listed[first:last])


def changed_files(listed: Iterable[ListedFile]) -> list[ListedFile]:
    """Return those files that are not as they were listed any more, or are gone.

    >>> changed_files([ListedFile("/nowhere/a.csv", 1, 0)])
    [ListedFile(path='/nowhere/a.csv', size=1, modified=0, time=None)]
    """
    return [file for file in listed if _size_and_time(file.path) != (file.size, file.modified)]


def require_unchanged(listed: Iterable[ListedFile]) -> None:
    """Refuse what was read of files that have been changed since they were listed.

    >>> require_unchanged([ListedFile("/nowhere/a.csv", 1, 0)])
    Traceback (most recent call last):
    floodmark.errors.SourceChanged: '/nowhere/a.csv' is gone. ... [source-changed]
    """
    others = changed_files(listed)
    if not others:
        return
    gone = [file.path for file in others if _size_and_time(file.path) is None]
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
        check_reader_options(source)
        found: dict[str, tuple[ListedFile, ...] | FloodmarkError] = {}
        for unit in units:
            if unit.key not in found:
                try:
                    found[unit.key] = list_files(source, zone, unit)
                except FloodmarkError as error:
                    found[unit.key] = error
        return cls(found)

    def of(self, row: PlannedRange) -> tuple[ListedFile, ...]:
        """Return the files of a row of the plan, or raise why there are none."""
        files = self.files[row.unit.key]
        if isinstance(files, FloodmarkError):
            raise files
        return files_in_range(files, row.range)


def check_reader_options(source: FilesSource) -> None:
    """Refuse options of the reader that decide which files are read.

    >>> check_reader_options(FilesSource(paths=("x/*.csv",), format="csv", options={"pathGlobFilter": "*.csv"}))
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: The source has the option 'pathGlobFilter'. ... [invalid-option]
    """
    for name in source.options:
        if name.lower() in _REFUSED_OPTIONS:
            raise InvalidOption(
                f"The source has the option {name!r}.",
                rule="Which files are read is decided when they are listed, and each of them is read whole.",
                remedy="Leave it out, and write the paths and patterns that are meant.",
                option="options",
                name=name,
            )


def _path_for_unit(path: str, unit: Unit) -> str:
    named = variable_names(path)
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
        known[f"unit.{name}"] = escape_pattern(text)
    return str(substitute_variables(path, known))


def _size_and_time(path: str) -> tuple[int, int] | None:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_size, seen.st_mtime_ns // 1000


def time_from_name(pattern: str, written: str, zone: ZoneInfo) -> Callable[[str], int]:
    """Return a function from a path to the time in its name, in microseconds.

    The pattern is looked for in the last part of the path, or in all of it if there is a `/` in the pattern. A time
    without an offset is one of the zone; if it comes twice there, the later one is meant: then the file is whole.

    >>> from floodmark.ingest.calendar.clock import zone_of
    >>> time_of = time_from_name("orders-(?P<time>[0-9]{8})", "%Y%m%d", zone_of("UTC"))
    >>> time_of("/drops/orders-19700102.csv")
    86400000000
    >>> time_of("/drops/orders.csv")
    Traceback (most recent call last):
    floodmark.errors.FileTimeUnknown: The name of '/drops/orders.csv' has no time. ... [file-time-unknown]
    """
    search, is_whole = re.compile(pattern).search, "/" in pattern
    known: dict[str, int] = {}

    def time_of(path: str) -> int:
        match = search(path if is_whole else os.path.basename(path))
        text = None if match is None else match["time"]
        if text is None:
            raise _unknown_time_error(
                path,
                f"The name of {path!r} has no time.",
                f"Each file that is listed has one, where {pattern!r} finds it; else it would never be read.",
            )
        if text not in known:
            try:
                known[text] = _parsed_moment(datetime.strptime(text, written), zone)  # noqa: DTZ007
            except (ValueError, OverflowError, re.error) as error:
                raise _unknown_time_error(
                    path,
                    f"The name of {path!r} has {text!r} where its time should be: {error}.",
                    f"That part is written as {written!r} says, as strptime reads it.",
                ) from error
        return known[text]

    return time_of


def _parsed_moment(parsed: datetime, zone: ZoneInfo) -> int:
    if parsed.tzinfo is not None:
        return (parsed - EPOCH) // MICROSECOND
    return wall_to_micros(parsed.replace(fold=1), zone)


def _unknown_time_error(path: str, fact: str, rule: str) -> FileTimeUnknown:
    return FileTimeUnknown(
        fact,
        rule=rule,
        remedy="Correct name_pattern or name_format, rename the file, or write a path that leaves it out.",
        path=path,
    )


_LITERAL: Final = re.compile(r"\[([*?{}[])\]")
_MAGIC: Final = re.compile(r"[*?]|\[.+\]")
_ALTERNATIVES: Final = re.compile(r"\{[^{}/]*,[^{}/]*\}")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class FoundFile(NamedTuple):
    """A file that is there."""

    path: str
    size: int
    modified: int
    """Microseconds."""


class _SearchPosition(NamedTuple):
    """Where a search has come to."""

    path: str
    is_linked: bool
    """Whether a link has led there."""


def escape_pattern(text: str) -> str:
    """Return a text as a pattern of nothing but itself.

    >>> escape_pattern("a[1]*")
    'a[[]1][*]'
    """
    return re.sub(r"([*?{}[])", r"[\1]", text)


def find_files(written: Iterable[str]) -> list[FoundFile]:
    """Return the files of paths and patterns, each once, in no particular order.

    A pattern may have none. A path that has no pattern must be there.

    >>> find_files(["nowhere.csv"])
    Traceback (most recent call last):
    floodmark.errors.FileMissing: There is no '.../nowhere.csv'. ... [file-missing]
    """
    found: dict[str, FoundFile] = {}
    linked: dict[str, FoundFile] = {}
    for one in written:
        parts = [part for part in os.path.abspath(_local(one)).split(os.sep) if part]
        is_any = False
        try:
            for place in _matching(_SearchPosition(os.sep, False), parts):
                for is_linked, file in _below(place, frozenset()):
                    is_any = True
                    (linked if is_linked else found)[file.path] = file
        except OSError as error:
            raise _unreadable(str(error.filename), error) from error
        if not is_any and not any(_is_magic(part) for part in parts):
            _require_directory(os.sep + os.sep.join(map(_literal, parts)))
    return [*found.values(), *_others(linked, found)]


def _others(linked: dict[str, FoundFile], found: dict[str, FoundFile]) -> Iterator[FoundFile]:
    """Give what only links lead to, each file once."""
    if not linked:
        return
    directory = cache(os.path.realpath)
    known = {os.path.join(directory(os.path.dirname(path)), os.path.basename(path)) for path in found}
    for path, file in sorted(linked.items()):
        target = os.path.realpath(path)
        if target not in known:
            known.add(target)
            yield file


def _require_directory(path: str) -> None:
    if not os.path.isdir(path):
        raise FileMissing(
            f"There is no {path!r}.",
            rule="A path without a pattern names a file or a directory that is there.",
            remedy="Correct the path, or write a pattern such as drops/*.csv if there may be none.",
            path=path,
        )


def _local(written: str) -> str:
    scheme = _SCHEME.match(written)
    if scheme is not None and scheme[1] != "file":
        raise InvalidOption(
            f"The path {written!r} is not on this machine.",
            rule="Files are listed in directories: their sizes and times are looked at before and after they are read.",
            remedy="Mount the store as a directory, or copy the files to one, and name that.",
            option="paths",
            path=written,
        )
    local = written if scheme is None else written[scheme.end() :]
    if _is_magic(local) and _ALTERNATIVES.search(_LITERAL.sub("", local)):
        raise InvalidOption(
            f"The pattern {written!r} has alternatives in braces.",
            rule="Patterns are made of *, **, ? and [..].",
            remedy="Write several paths instead, or [{] for the character itself.",
            option="paths",
            path=written,
        )
    return local


def _is_magic(part: str) -> bool:
    return _MAGIC.search(_LITERAL.sub("", part)) is not None


def _literal(part: str) -> str:
    return _LITERAL.sub(r"\1", part)


def _is_hidden(name: str) -> bool:
    # A directory such as _day=1 is a value of a column to Spark.
    return name[0] == "." or (name[0] == "_" and "=" not in name) or name.endswith("._COPYING_")


def _matching(place: _SearchPosition, parts: list[str]) -> Iterator[_SearchPosition]:
    """Give what is there for the rest of a pattern."""
    for count, part in enumerate(parts):
        if part == "**":
            rest = parts[count + 1 :]
            for directory in _directories(place, frozenset()) if rest else (place,):
                yield from _matching(directory, rest)
            return
        if _is_magic(part):
            rest = parts[count + 1 :]
            for one in _fitting(place, part):
                yield from _matching(one, rest)
            return
        place = _SearchPosition(os.path.join(place.path, _literal(part)), place.is_linked)
    yield place


def _fitting(place: _SearchPosition, part: str) -> Iterator[_SearchPosition]:
    """Give the entries of a directory that a part of a pattern fits."""
    fits, is_any = re.compile(translate(part)).match, False
    for entry in _entries(place.path):
        if fits(entry.name) and (entry.name[0] == part[0] or not _is_hidden(entry.name)):
            is_any = True
            yield _SearchPosition(entry.path, place.is_linked or entry.is_symlink())
    # As in a shell: what fits nothing, and is there just as it is written, is meant so.
    exact = os.path.join(place.path, part)
    if not is_any and os.path.lexists(exact):
        yield _SearchPosition(exact, place.is_linked)


def _directories(place: _SearchPosition, above: frozenset[str]) -> Iterator[_SearchPosition]:
    """Give a directory, and all below it."""
    above = _entered(place, above)
    yield place
    for entry in _entries(place.path):
        if not _is_hidden(entry.name) and entry.is_dir():
            inner = _SearchPosition(entry.path, place.is_linked or entry.is_symlink())
            if not _leads_back(inner, above):
                yield from _directories(inner, above)


def _below(place: _SearchPosition, above: frozenset[str]) -> Iterator[tuple[bool, FoundFile]]:
    """Give a file, or the files of a directory and below it, each with whether a link has led there."""
    try:
        seen = os.stat(place.path)
    except (FileNotFoundError, NotADirectoryError):
        if os.path.islink(place.path):
            raise _leads_nowhere(place.path) from None
        return
    if not S_ISDIR(seen.st_mode):
        yield place.is_linked, _file(place.path, seen)
        return
    above = _entered(place, above)
    for entry in _entries(place.path):
        if _is_hidden(entry.name):
            continue
        inner = _SearchPosition(entry.path, place.is_linked or entry.is_symlink())
        if entry.is_file():
            try:
                yield inner.is_linked, _file(entry.path, entry.stat())
            except FileNotFoundError:
                continue  # it was removed meanwhile
        elif not _leads_back(inner, above):
            yield from _below(inner, above)


def _entered(place: _SearchPosition, above: frozenset[str]) -> frozenset[str]:
    # Only links can lead back, so only what is entered by one, and what a search begins with, is looked up.
    return above if above and not place.is_linked else above | {os.path.realpath(place.path)}


def _leads_back(place: _SearchPosition, above: frozenset[str]) -> bool:
    """Tell whether a link leads to where the search has come from: it would go round and round."""
    if not place.is_linked:
        return False
    target = os.path.realpath(place.path)
    here = os.path.realpath(os.path.dirname(place.path))
    return any(one == target or one.startswith(target.rstrip(os.sep) + os.sep) for one in {*above, here})


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []  # it was removed meanwhile, or is a file


def _file(path: str, seen: os.stat_result) -> FoundFile:
    if not S_ISREG(seen.st_mode):
        raise SourceFailed(
            f"{path!r} is no file: it is a device, a pipe or a socket.",
            rule="What is read has a size, and can be read again.",
            remedy="Move it elsewhere, or write a pattern that leaves it out.",
            path=path,
        )
    if _is_hidden(os.path.basename(path)):
        raise SourceFailed(
            f"{path!r} is a hidden file.",
            rule="Spark passes over files whose names begin with . or _, or end with ._COPYING_, and does not say so.",
            remedy="Rename the file, or write a path that leaves it out.",
            path=path,
        )
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SourceFailed(
            f"The name {path!r} is not written in UTF-8.",
            rule="Spark knows only names that are.",
            remedy="Rename the file, or write a pattern that leaves it out.",
            path=ascii(path),
        ) from None
    return FoundFile(path, seen.st_size, seen.st_mtime_ns // 1000)


def _leads_nowhere(path: str) -> FileMissing:
    return FileMissing(
        f"The link {path!r} leads nowhere.",
        rule="What a link leads to is read, so it must be there.",
        remedy="Remove the link, or bring back what it leads to.",
        path=path,
    )


def _unreadable(path: str, error: OSError) -> SourceRefused:
    return SourceRefused(
        f"{path!r} cannot be looked into: {error.strerror or error}.",
        rule="Every directory that a path or a pattern names is listed whole; else files would be missed.",
        remedy="Let this user read it, or write a pattern that leaves it out.",
        path=path,
    )
