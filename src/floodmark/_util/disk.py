"""Files that must survive a power failure."""

import os
from pathlib import Path


def sync_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a directory, to disk.

    >>> sync_to_disk(Path("."))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
