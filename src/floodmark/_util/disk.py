"""Files that must outlive a power failure."""

import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk.

    >>> sync_to_disk(Path("."))
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
