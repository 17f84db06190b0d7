"""What happens to sinks of all kinds: another process takes over, a transaction takes too long, nobody has started."""

from typing import Any, Final

from floodmark.errors import SinkFenced, SinkTimedOut, StateError

MOST_TIMEOUTS: Final = 2
"""So often transactions may take too long, one after the other, before a sink ends."""


def fenced_off(sink: str, doing: str, **fields: Any) -> SinkFenced:
    """Return the error for a process whose place another one has taken."""
    return SinkFenced(
        f"The sink {sink!r} was fenced off while {doing}: another process writes for it now.",
        rule="One process writes for a sink; whoever started last.",
        remedy="Stop the other one and start this one again, or let it be.",
        sink=sink,
        **fields,
    )


def timed_out(
    sink: str,
    rows: int,
    seconds: float,
    timeout: float,
    *,
    again: bool,
    more: str = "",
    rule: str = "A transaction that takes longer is given up: nothing of it is seen.",
    **fields: Any,
) -> SinkTimedOut:
    """Return the error for a transaction that took too long; `more` is added to the fact."""
    return SinkTimedOut(
        f"A transaction of the sink {sink!r} had {rows} rows after {seconds:.1f} s, and its timeout is {timeout:g} s"
        f"{more}.",
        rule=rule,
        remedy="Raise the sink's timeout, or make batches smaller"
        + ("." if again else "; it was tried twice, and is not tried again."),
        sink=sink,
        rows=rows,
        seconds=seconds,
        timeout=timeout,
        again=again,
        **fields,
    )


def not_started(sink: str) -> StateError:
    """Return the error for a sink that is to write before it has started."""
    return StateError(
        f"The sink {sink!r} is not started.",
        rule="It knows what it has written only after it has fenced those before it and read their progress.",
        remedy="Call start() first, and again after an error.",
        sink=sink,
    )
