"""How many examples a property test tries: all of them with `--full`, otherwise a fifth."""

import os

FULL = "FLOODMARK_FULL"
"""The environment variable that `--full` sets, also for the workers of pytest-xdist."""


def is_full() -> bool:
    return os.environ.get(FULL) == "1"


def examples(number: int) -> int:
    """Return how many of so many examples, histories or seeds this run tries."""
    return number if is_full() else min(number, max(10, number // 5))
