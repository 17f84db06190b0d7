"""How many examples a property test tries: all of them with `--full`, otherwise a fifth."""

import os

FULL = "FLOODMARK_FULL"
"""The environment variable that `--full` sets, also for the workers of pytest-xdist."""


def is_full() -> bool:
    return os.environ.get(FULL) == "1"


def examples(number: int, usual: int | None = None) -> int:
    """Return how many of so many examples, histories or seeds this run tries; `usual` of them if it is not full."""
    if is_full():
        return number
    return min(number, max(10, number // 5)) if usual is None else usual
