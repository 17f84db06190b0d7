"""How tests wait for what another thread or process does."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(
    look: Callable[[], Value], seconds: float = 30, *, holds: Callable[[Value], object] = bool, pause: float = 0.01
) -> Value:
    """Call `look` until `holds` is true of its value, by default until the value is true; return that value.

    Fail after `seconds`. Between two calls it sleeps `pause` seconds.
    """
    give_up = time.monotonic() + seconds
    while not holds(value := look()):
        assert time.monotonic() < give_up, f"did not happen within {seconds:g} seconds; the last value was {value!r}"
        time.sleep(pause)
    return value
