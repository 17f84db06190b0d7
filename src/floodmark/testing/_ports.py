"""Ports for servers of tests."""

import random
import socket
from typing import Final

_PORTS: Final = (12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return ports that are free, below those that connections get: a server takes them only seconds later.

    >>> len(set(free_ports(2)))
    2
    """
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(*_PORTS)
        with socket.socket() as attempt:
            if port not in found and attempt.connect_ex(("127.0.0.1", port)) != 0:
                found.append(port)
    return found
