"""One sentence on what would let a watermark move."""

from collections.abc import Mapping, Sequence
from typing import Final

from floodmark._util.codec import JsonValue
from floodmark.cli._answer import OriginAnswer
from floodmark.cli._times import as_clock, as_duration

_NAMED: Final = 3


def release_of(watermark: int | None, origins: Sequence[OriginAnswer], settings: JsonValue, now: int) -> str:
    """Return what would move the watermark on, in one sentence."""
    holders = [origin for origin in origins if origin.holds]
    active = [origin for origin in origins if origin.state == "active"]
    if holders:
        leaving = _leaving(len(holders) > 1, settings)
        return f"It moves when {_names(holders)} {_row_needed(holders, watermark, now)}{leaving}."
    if active and watermark is not None:
        return f"It moves when {_names(active)} {'have' if len(active) > 1 else 'has'} caught up with it."
    if any(origin.state == "idle" for origin in origins):
        return "It moves when an idle origin sends a row again that is late enough in time, or a new origin appears."
    if origins:
        return "It moves no more: every origin has finished."
    return "It appears when the first row has been read."


def _leaving(many: bool, settings: JsonValue) -> str:
    """Return how else the holders may let go, as far as the settings allow it."""
    are = "are" if many else "is"
    if not isinstance(settings, Mapping) or "idle" not in settings:
        return f", {'go' if many else 'goes'} idle, or {are} removed"
    if settings["idle"] is None:
        return f", or {are} removed (no idle time is set)"
    return f", {are} silent for {as_duration(settings['idle'])} with nothing unread, or {are} removed"


def _row_needed(holders: Sequence[OriginAnswer], watermark: int | None, now: int) -> str:
    """Return what rows the holders must send."""
    many = len(holders) > 1
    send = "each send" if many else "sends"
    if all(origin.watermark is None for origin in holders):
        return f"{send} {'their' if many else 'its'} first row that counts"
    needed = [_time_to_pass(origin, watermark) for origin in holders]
    known = [time for time in needed if time is not None]
    if len(known) < len(needed):
        return f"{'come' if many else 'comes'} further in time"
    return f"{send} a row later than {as_clock(max(known), now)}"


def _time_to_pass(origin: OriginAnswer, watermark: int | None) -> int | None:
    """Return the time that a row of this origin must be above to move the watermark, if its rule tells.

    The distance from its newest row to its own watermark is the delay that it is given.
    """
    if origin.watermark is None or origin.newest_time is None:
        return None
    delay = origin.newest_time - origin.watermark
    return max(origin.watermark, origin.watermark if watermark is None else watermark) + delay


def _names(origins: Sequence[OriginAnswer]) -> str:
    """Return the names of the first few and the number of the others."""
    names = [str(origin.name) for origin in origins]
    if len(names) > _NAMED:
        names = [*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} others"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
