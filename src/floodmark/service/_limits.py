"""What a service takes at most: sizes, numbers and times."""

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """The limits of a service. What goes beyond one is refused, and nothing of it is stored.

    >>> ServiceLimits(max_request=8 * MIB).max_marks
    1000
    """

    max_request: int = 64 * MIB
    """How many bytes the body of a request may have."""
    max_under_way: int = 512 * MIB
    """How many bytes all bodies together may have that are under way."""
    max_header: int = 64 * 1024
    """How many bytes the first line and the headers of a request may have."""
    max_marks: int = 1_000
    """How many marks a request may have."""
    max_wait: float = 30.0
    """For how many seconds a request may wait for news."""
    header_seconds: float = 10.0
    """How long the headers of a request may take to come."""
    body_seconds: float = 60.0
    """How long the service waits for the next piece of a body."""
    keep_alive_seconds: float = 75.0
    """How long a connection may be idle."""
    stop_seconds: float = 30.0
    """How long requests that are under way have when the service is to stop."""
    token_seconds: float = 0.25
    """How long a token may be good that was revoked, and how soon a new one is."""
    threads: int = 8
    """How many requests work on the store at the same time; marks do not count."""
    max_waiting: int = 256
    """How many more requests may wait for their turn, and how many times as many marks."""
    max_connections: int = 2_000
    """How many connections there may be."""
