"""A small language for scenarios of merging: `q0 10 -> - | q1 12 -> 10`, one step between bars.

A step is an input and what it does: `10` (a watermark on the default key), `k1=7` (on another), `idle`, `event`,
`done`, `revive`, `add`, `add:exclude`, `remove`. Behind the arrow stands what leaves: `-` for nothing,
watermarks and `IDLE` in order, or `!code` for an error.
"""

from floodmark.errors import FloodmarkError
from floodmark.progress import IDLE, Coalescer, Revived, Signal

KEY = "k0"


def run(merged: Coalescer, script: str) -> None:
    """Play the script and check what leaves after each step."""
    for number, step in enumerate(script.split("|"), start=1):
        action, _, expected = (part.strip() for part in step.partition("->"))
        found = play(merged, action)
        assert found == (expected or "-"), f"step {number}, {action!r}: {found} instead of {expected or '-'}"


def play(merged: Coalescer, action: str) -> str:
    """Play one step; return what left, in the words of the language."""
    try:
        return show(_signals(merged, action))
    except FloodmarkError as error:
        return f"!{error.code}"


def show(signals: tuple[Signal, ...]) -> str:
    """Return signals in the words of the language."""
    return ", ".join(_word(signal) for signal in signals) or "-"


def _word(signal: Signal) -> str:
    if signal is IDLE:
        return "IDLE"
    return str(signal.time) if signal.key == KEY else f"{signal.key}={signal.time}"


def _signals(merged: Coalescer, action: str) -> tuple[Signal, ...]:
    name, what = action.split()
    if what == "idle":
        return merged.idle(name)
    if what == "done":
        return merged.finish(name)
    if what == "revive":
        return merged.revive(name)
    if what == "remove":
        return merged.remove(name)
    if what == "event":
        return merged.event(name)
    if what.startswith("add"):
        _, _, policy = what.partition(":")
        revived: Revived | None = "exclude" if policy == "exclude" else "hold" if policy == "hold" else None
        merged.add(name, revived=revived)
        return ()
    key, _, time = what.rpartition("=")
    return merged.watermark(name, key or KEY, int(time))
