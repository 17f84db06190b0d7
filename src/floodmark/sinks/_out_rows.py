"""Rows as they are written."""

from collections.abc import Sequence
from typing import Final

TS_HEADER: Final = "floodmark.ts"
"""The header that has the timestamp of a row, in decimal digits."""

Headers = Sequence[tuple[str, bytes | None]]
OutRow = tuple[bytes | None, bytes | None, int, int | None, Headers | None]
"""A row to be written: key, value, timestamp, partition (None: by the key), headers."""
