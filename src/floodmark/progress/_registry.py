"""Which origins a tracker knows, which of them are closed, and the minimum over the others."""

from typing import Any

from floodmark._util.ints import check_watermark
from floodmark._util.names import Name, check_new_name
from floodmark.errors import OriginClosed
from floodmark.progress._origin_codes import OriginCodes, unknown_origin
from floodmark.progress._prefix import NO_WATERMARK, Prefix
from floodmark.progress._tracker_state import load_prefix, merge_prefix, save_prefix


class Registry:
    """All origins in the order they were added; `open` holds those that count."""

    __slots__ = ("_codes", "all", "floor", "open")

    def __init__(self) -> None:
        self.all: dict[Name, Prefix] = {}
        self.open: dict[Name, Prefix] = {}
        self.floor = NO_WATERMARK
        self._codes: OriginCodes | None = None

    def prefix(self, origin: Name) -> Prefix:
        """Return the prefix of an origin, closed or not."""
        prefix = self.all.get(origin)
        if prefix is None:
            raise unknown_origin(origin)
        return prefix

    def codes(self) -> OriginCodes:
        """Return the numbering of all origins."""
        if self._codes is None:
            self._codes = OriginCodes(tuple(self.all))
        return self._codes

    def reached(self) -> int:
        """Return the minimum over the open origins, or where it was when it could have fallen."""
        return max(self.floor, min((prefix.watermark for prefix in self.open.values()), default=NO_WATERMARK))

    def add(self, origin: Name, prefix: Prefix) -> None:
        """Add an origin. The minimum waits for it but does not fall."""
        check_new_name(origin, "origin", self.all)
        self.floor = self.reached()
        self.all[origin] = self.open[origin] = prefix
        self._codes = None

    def close(self, origin: Name) -> None:
        """Leave an origin out of the minimum, which does not fall if it was the last."""
        self.prefix(origin)
        self.floor = self.reached()
        self.open.pop(origin, None)

    def refuse_closed(self, origin: Name) -> None:
        """Raise if something new was reported for a closed origin."""
        if origin not in self.open:
            raise OriginClosed(
                f"The origin {origin!r} is closed and reported something new.",
                rule="Nothing comes from an origin after it was closed.",
                remedy="Close it only when its last piece was reported, or add the new work under another name.",
                origin=origin,
            )

    def merge(self, other: "Registry", chunk_base: int) -> None:
        """Learn what `other` knows; on a contradiction nothing changes."""
        merged = {
            origin: merge_prefix(self.all[origin], theirs, chunk_base) if origin in self.all else theirs.copy()
            for origin, theirs in other.all.items()
        }
        brings_origins = not merged.keys() <= self.all.keys()
        self.floor = max(self.reached() if brings_origins else self.floor, other.floor)
        closed = (self.all.keys() - self.open.keys()) | (other.all.keys() - other.open.keys())
        self.all |= merged
        self.open = {origin: prefix for origin, prefix in self.all.items() if origin not in closed}
        self._codes = None

    def save(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "floor": None if self.floor == NO_WATERMARK else self.floor,
            "origins": [[origin, save_prefix(prefix)] for origin, prefix in self.all.items()],
            "closed": [origin for origin in self.all if origin not in self.open],
        }

    def load(self, saved: Any, max_pending: int) -> None:
        """Take over what was saved."""
        for origin, prefix in saved["origins"]:
            self.add(origin, load_prefix(prefix, max_pending))
        for origin in saved["closed"]:
            self.close(origin)
        self.floor = NO_WATERMARK if saved["floor"] is None else check_watermark(saved["floor"])
