"""A stream as Spark reads it while it grows."""

from collections.abc import Mapping, Sequence
from typing import Any

from floodmark.bindings import BoundStream
from floodmark.bindings.offsets import BoundRange
from floodmark.spark._bound_reader import BoundReader, parts_of
from floodmark.spark._stream_bounds import Bounds
from floodmark.spark._stream_rows import Mark, RangePart, open_home, read_part
from floodmark.spark._stream_settings import ReadSettings


class StreamReader(BoundReader[BoundStream, ReadSettings]):
    """Reads a stream of a home."""

    def __init__(self, settings: ReadSettings, location: str) -> None:
        super().__init__(settings, location)
        self._bounds: Bounds | None = None

    def read(self, partition: RangePart) -> Any:  # type: ignore[override]
        """Return the rows of one task."""
        return read_part(self._location, self._settings, partition)

    def _open(self) -> BoundStream:
        return BoundStream(open_home(self._location), self._settings.stream, source=self._settings.source)

    def _bounds_of(self, bound: BoundStream) -> Bounds:
        if self._bounds is None:
            self._bounds = Bounds.of(self._settings, bound.stream)
        return self._bounds

    def _first(self, bound: BoundStream) -> Mapping[int, int] | None:
        start = self._bounds_of(bound).start(bound)
        return None if start is None else bound.ends_at(start)

    def _final(self, bound: BoundStream) -> Mapping[int, int] | None:
        return self._bounds_of(bound).end(bound)

    def _time_key(self, bound: BoundStream) -> tuple[str, str]:
        known = bound.stream.settings
        return known.key(self._settings.key), known.unit

    def _is_limited(self) -> bool:
        return super()._is_limited() or bool(self._settings.max_bytes)

    def _most_rows(self, bound: BoundStream) -> int | None:
        settings = self._settings
        by_bytes = self._bounds_of(bound).rows_of(settings.max_bytes, bound)
        return min((most for most in (settings.max_rows, by_bytes) if most is not None), default=None)

    def _parts(self, bound: BoundStream, ranges: Sequence[BoundRange], mark: Mark | None) -> Sequence[RangePart]:
        return parts_of(ranges, self._settings.rows_per_task, self._bounds_of(bound).rows, mark)
