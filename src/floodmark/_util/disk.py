"""Files that must survive a power failure, and files that only their owner may read."""

import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

LATE_DIRECTORY: Final = "late"
"""The directory in a home for the late rows of queries."""

_PRIVATE_DIRECTORY: Final = 0o700
_PRIVATE_FILE: Final = 0o600


def sync_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk.

    >>> sync_to_disk(Path("."))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_private_directory(path: Path, below: Path) -> None:
    """Create a directory, and each missing one between `below` and it, that only this user can enter.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as home:
    ...     make_private_directory(Path(home) / "late" / "orders", below=Path(home))
    ...     oct((Path(home) / "late").stat().st_mode & 0o777)
    '0o700'
    """
    if path.parent not in (below, path):
        make_private_directory(path.parent, below)
    path.mkdir(_PRIVATE_DIRECTORY, parents=True, exist_ok=True)


def create_private_file(path: Path) -> BinaryIO:
    """Create a file that only this user can read and write; an existing file is an error.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory, create_private_file(Path(directory) / "rows") as file:
    ...     oct(Path(file.name).stat().st_mode & 0o777)
    '0o600'
    """
    return open(path, "xb", opener=lambda name, flags: os.open(name, flags, _PRIVATE_FILE))


def make_private(path: Path) -> None:
    """Take all access to a file or directory from other users. Does nothing if it is missing or another user's.

    >>> from tempfile import NamedTemporaryFile
    >>> with NamedTemporaryFile() as file:
    ...     Path(file.name).chmod(0o644)
    ...     make_private(Path(file.name))
    ...     oct(Path(file.name).stat().st_mode & 0o777)
    '0o600'
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            path.chmod(mode & ~0o077)
    except OSError:
        return
