"""Where a key lies in the key space: a hash that is the same in every process, release and language.

The point of a key is the first 53 bits of its BLAKE2b digest of 8 bytes (text as UTF-8), read as a fraction of 1.
53 bits are what a float keeps, so the point is exact and never rounds up to 1.
"""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from floodmark.errors import KeyOutOfSpace

Key = str | bytes
"""What events are routed by: those of one key stay in order."""

_SHIFT = 11
_UNIT = 2.0**-53


def key_point(key: Key) -> float:
    """Return the point of a key in [0, 1).

    >>> key_point("customer-7")
    0.4123318747867929
    >>> key_point("customer-7") == key_point(b"customer-7")
    True
    """
    return (stable_hash(key) >> _SHIFT) * _UNIT


def key_points(keys: Sequence[Key]) -> NDArray[np.float64]:
    """Return the points of many keys.

    >>> key_points(["customer-7", "customer-8"]).round(3).tolist()
    [0.412, 0.627]
    """
    try:
        digests = [
            blake2b(key.encode() if isinstance(key, str) else key, digest_size=8, usedforsecurity=False).digest()
            for key in keys
        ]
    except (TypeError, AttributeError, UnicodeEncodeError):
        for key in keys:
            stable_hash(key)
        raise
    numbers = np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)
    return (numbers >> np.uint64(_SHIFT)).astype(np.float64) * _UNIT


def stable_hash(key: Key) -> int:
    """Return 64 bits that depend on nothing but the key.

    >>> stable_hash(7)
    Traceback (most recent call last):
    floodmark.errors.KeyOutOfSpace: The key is 7. It must be text or bytes. ... [key-out-of-space]
    """
    try:
        raw = key.encode() if isinstance(key, str) else key
        return int.from_bytes(blake2b(raw, digest_size=8, usedforsecurity=False).digest())
    except (TypeError, UnicodeEncodeError) as error:
        raise KeyOutOfSpace(
            f"The key is {key!r}.",
            rule="It must be text or bytes.",
            remedy="Write the value that should stay in order as text.",
            key=key,
        ) from error


def check_point(point: object) -> float:
    """Return `point` if it lies in the key space, or refuse it.

    >>> check_point(1.0)
    Traceback (most recent call last):
    floodmark.errors.KeyOutOfSpace: The point is 1.0. The key space is [0, 1). ... [key-out-of-space]
    """
    if isinstance(point, int | float) and not isinstance(point, bool) and 0.0 <= point < 1.0:
        return float(point)
    raise KeyOutOfSpace(
        f"The point is {point!r}.",
        rule="The key space is [0, 1).",
        remedy="Route by the key itself, or pass a point from 0 to below 1.",
        point=point,
    )
