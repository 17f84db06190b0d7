"""Paths and patterns, and the files that are there for them.

| written | means |
|---|---|
| `*`, `?`, `[abc]`, `[!abc]` | what they mean in a shell, within one part of a path |
| `**` as a part of its own | any number of directories, also none |
| `[*]`, `[{]` | the character itself |
| a directory | all files in it, and in the directories below |

Names that begin with `.` or `_` are passed over, as Spark does, and so are files that Hadoop is still copying. Such a
directory can be named all the same, or by a pattern that begins so too; such a file cannot: Spark would not read it.
A link counts as the file it leads to, and is passed over where that one is found by its own name.
"""

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from functools import cache
from stat import S_ISDIR, S_ISREG
from typing import Final, NamedTuple

from floodmark.errors import FileMissing, InvalidOption, SourceFailed, SourceRefused

_LITERAL: Final = re.compile(r"\[([*?{}[])\]")
_MAGIC: Final = re.compile(r"[*?]|\[.+\]")
_ALTERNATIVES: Final = re.compile(r"\{[^{}/]*,[^{}/]*\}")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Found(NamedTuple):
    """A file that is there."""

    path: str
    size: int
    modified: int
    """Microseconds."""


class _Place(NamedTuple):
    """Where a search has come to."""

    path: str
    is_linked: bool
    """Whether a link has led there."""


def escaped(text: str) -> str:
    """Return a text as a pattern of nothing but itself.

    >>> escaped("a[1]*")
    'a[[]1][*]'
    """
    return re.sub(r"([*?{}[])", r"[\1]", text)


def expand(written: Iterable[str]) -> list[Found]:
    """Return the files of paths and patterns, each once, in no particular order.

    A pattern may have none. A path that has no pattern must be there.

    >>> expand(["nowhere.csv"])
    Traceback (most recent call last):
    floodmark.errors.FileMissing: There is no '.../nowhere.csv'. ... [file-missing]
    """
    found: dict[str, Found] = {}
    linked: dict[str, Found] = {}
    for one in written:
        parts = [part for part in os.path.abspath(_local(one)).split(os.sep) if part]
        is_any = False
        try:
            for place in _matching(_Place(os.sep, False), parts):
                for is_linked, file in _below(place, frozenset()):
                    is_any = True
                    (linked if is_linked else found)[file.path] = file
        except OSError as error:
            raise _unreadable(str(error.filename), error) from error
        if not is_any and not any(_is_magic(part) for part in parts):
            _require_directory(os.sep + os.sep.join(map(_literal, parts)))
    return [*found.values(), *_others(linked, found)]


def _others(linked: dict[str, Found], found: dict[str, Found]) -> Iterator[Found]:
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


def _matching(place: _Place, parts: list[str]) -> Iterator[_Place]:
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
        place = _Place(os.path.join(place.path, _literal(part)), place.is_linked)
    yield place


def _fitting(place: _Place, part: str) -> Iterator[_Place]:
    """Give the entries of a directory that a part of a pattern fits."""
    fits, is_any = re.compile(translate(part)).match, False
    for entry in _entries(place.path):
        if fits(entry.name) and (entry.name[0] == part[0] or not _is_hidden(entry.name)):
            is_any = True
            yield _Place(entry.path, place.is_linked or entry.is_symlink())
    # As in a shell: what fits nothing, and is there just as it is written, is meant so.
    exact = os.path.join(place.path, part)
    if not is_any and os.path.lexists(exact):
        yield _Place(exact, place.is_linked)


def _directories(place: _Place, above: frozenset[str]) -> Iterator[_Place]:
    """Give a directory, and all below it."""
    above = _entered(place, above)
    yield place
    for entry in _entries(place.path):
        if not _is_hidden(entry.name) and entry.is_dir():
            inner = _Place(entry.path, place.is_linked or entry.is_symlink())
            if not _leads_back(inner, above):
                yield from _directories(inner, above)


def _below(place: _Place, above: frozenset[str]) -> Iterator[tuple[bool, Found]]:
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
        inner = _Place(entry.path, place.is_linked or entry.is_symlink())
        if entry.is_file():
            try:
                yield inner.is_linked, _file(entry.path, entry.stat())
            except FileNotFoundError:
                continue  # it was removed meanwhile
        elif not _leads_back(inner, above):
            yield from _below(inner, above)


def _entered(place: _Place, above: frozenset[str]) -> frozenset[str]:
    # Only links can lead back, so only what is entered by one, and what a search begins with, is looked up.
    return above if above and not place.is_linked else above | {os.path.realpath(place.path)}


def _leads_back(place: _Place, above: frozenset[str]) -> bool:
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


def _file(path: str, seen: os.stat_result) -> Found:
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
    return Found(path, seen.st_size, seen.st_mtime_ns // 1000)


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
