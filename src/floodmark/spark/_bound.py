"""What a reader needs of a source whose rows are bound to timestamps, be it a stream or topics of Kafka."""

from typing import Protocol

from floodmark.bindings import BindingHistory, Bindings


class Bound(Protocol):
    """A source that is bound as it grows."""

    source: str
    bindings: Bindings

    def history(self) -> BindingHistory:
        """Return what is bound."""
        ...

    def tick(self, *, at_once: bool = False) -> BindingHistory:
        """Bind what is new, if a tick is due or it must be done at once, and return all that is bound."""
        ...


class Pacing(Protocol):
    """In which portions a source is read."""

    @property
    def max_rows(self) -> int | None:
        """How many rows a batch may have."""

    @property
    def max_event_time(self) -> int | None:
        """How far the watermark may move in a batch, in microseconds."""

    @property
    def settle(self) -> bool:
        """Whether batches end where the watermark moves."""

    @property
    def align(self) -> str | None:
        """A name that queries have which move on together."""

    @property
    def max_ahead(self) -> int:
        """How far ahead of the slowest of them it may be, in microseconds."""

    @property
    def mark_rows(self) -> bool:
        """Whether a row without data tells where the watermark is."""

    @property
    def reader(self) -> str | None:
        """What tells this DataFrame from others, so that a query can be found that reads it."""
