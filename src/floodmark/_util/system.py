"""Facts that not every operating system tells."""

import struct
import sys
from typing import Any

if sys.platform != "win32":
    import fcntl
    import resource
    import termios


def unacknowledged_bytes(socket: Any) -> int:
    """Return how many sent bytes the system still keeps for the peer of a socket; 0 where the system does not tell.

    The system takes more data only after it has sent a large part of what it keeps, which may be megabytes.
    """
    if sys.platform == "win32":
        return 0
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, b"\0" * 4))
    except (AttributeError, OSError, ValueError):
        return 0
    return int(count)


def open_file_limit() -> int | None:
    """Return how many files this process may have open; None without a limit, or where the system does not tell."""
    if sys.platform == "win32":
        return None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if files == resource.RLIM_INFINITY else files
