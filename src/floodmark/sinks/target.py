"""What all targets of sinks share: the protocol, the options, failpoints for tests, and errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeVar

from floodmark.bindings.offsets import QueryPosition
from floodmark.errors import InvalidOption, SinkFenced, SinkTimedOut, StateError
from floodmark.sinks.gate import Batch, Drop, Write, WriteFrom
from floodmark.sinks.progress import Progress
from floodmark.sinks.startup import BoundsLookup, OnMissingBindings, Start

SinkMode = Literal["atomic", "parallel", "staged"]


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Options of a sink. Durations are in seconds."""

    version: int = 1
    """Version of the program. A process with a lower version than the recorded one does not start."""
    partitions: int = 1
    """Number of partitions of a topic that the sink creates."""
    progress_topic: str | None = None
    """Topic of the progress records; `<topic>.progress` by default."""
    marks: bool = True
    """Whether to write watermarks to `<topic>.marks`. Only one sink of a topic may do so."""
    stamp: bool = True
    """Whether each row carries its timestamp in a header."""
    headers: bool = True
    """Whether rows may have headers. With `headers` and `stamp` off, rows are written much faster."""
    append: bool = False
    """Whether the sink may start in a topic that already has records."""
    on_missing_bindings: OnMissingBindings = "error"
    timeout: float = 60.0
    """Transaction timeout: Kafka aborts a longer transaction. Readers wait behind an open transaction."""
    linger: float = 0.01
    max_rows: int | None = None
    """Number of rows after which a transaction is committed, at the end of a timestamp."""
    max_bytes: int | None = None
    """Number of bytes after which a transaction is committed, at the end of a timestamp."""

    def __post_init__(self) -> None:
        """Refuse options that are not above 0."""
        for name in ("version", "partitions", "timeout", "max_rows", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidOption(
                    f"The option {name} of a sink is {value}.",
                    rule=f"{name} must be above 0.",
                    remedy=f"Omit {name}, or set it to a number above 0.",
                    option=name,
                    value=value,
                )


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """A position between two timestamps of a batch where a transaction may end, and the watermarks there."""

    position: QueryPosition
    watermarks: Mapping[str, int] = field(default_factory=dict)


R_contra = TypeVar("R_contra", contravariant=True)


class TargetIdentity(Protocol):
    """What the home's list of sinks records of a target."""

    @property
    def sink(self) -> str:
        """The name of the sink."""

    @property
    def mode(self) -> SinkMode:
        """How rows become visible; see `SinkInfo.mode`."""

    @property
    def address(self) -> str:
        """URL of the target, without secrets."""

    @property
    def version(self) -> int:
        """Version of the program that writes."""

    @property
    def progress(self) -> Progress | None:
        """The progress that this process last wrote or read."""

    def forget_fence(self) -> None:
        """Let the target start again after a process that started earlier has fenced it."""

    def close(self) -> None:
        """Abort open work and release connections."""


class SinkTarget(TargetIdentity, Protocol[R_contra]):
    """Where a sink writes: rows and their progress record become visible together, or not at all."""

    def start(self, bounds: BoundsLookup, known: Progress | None = None) -> Start:
        """Fence earlier processes of the sink, read its progress, and decide how to start.

        `bounds` returns what can be read of sources; `known` is the home's copy of the progress, and it is an error if
        the target has lost what it records. Call again after any error.
        """

    def write(
        self,
        rows: R_contra | tuple[()],
        batch: Batch,
        decision: Write | WriteFrom | Drop,
        *,
        watermarks: Mapping[str, int] | None = None,
        split: Callable[[int], CommitPoint] | None = None,
    ) -> Progress:
        """Write the rows of a batch and its progress record, and return the record.

        Args:
            rows: What to write, in the form that the target takes; empty if nothing is to be written.
            batch: The batch that the rows come from.
            decision: What `decide_batch` returned for it.
            watermarks: The watermarks that hold after these rows, by time key.
            split: Returns the commit point after a timestamp, for targets that split a batch into transactions.

        After any error the target must be started again.
        """


Failpoint = Callable[[str], None]
"""A test hook, called with the name of each failpoint that is reached."""

FAILPOINTS: Final = (
    "sink: fenced",
    "sink: progress scanned in part",
    "sink: started",
    "sink: before the transaction",
    "sink: some rows sent",
    "sink: rows flushed",
    "sink: progress flushed",
    "sink: committed",
    "sink: hold advanced",
)
"""In the order in which a sink reaches them."""
(
    FENCED,
    SCANNED_IN_PART,
    STARTED,
    BEFORE_BEGIN,
    SOME_ROWS_SENT,
    ROWS_FLUSHED,
    PROGRESS_FLUSHED,
    COMMITTED,
    HOLD_ADVANCED,
) = FAILPOINTS


def no_failpoint(name: str) -> None:
    """Do nothing at a failpoint."""


MAX_TIMEOUTS_IN_A_ROW: Final = 2
"""After this many transaction timeouts in a row the sink gives up."""


def fenced_error(sink: str, doing: str, **fields: Any) -> SinkFenced:
    """Return the error for a process that another process of the same sink has fenced."""
    return SinkFenced(
        f"The sink {sink!r} was fenced off while {doing}: another process writes for it now.",
        rule="Only the process that started last writes for a sink.",
        remedy="Let the other process run; or stop it, then start this one again.",
        sink=sink,
        **fields,
    )


def timeout_error(
    sink: str,
    rows: int,
    seconds: float,
    timeout: float,
    *,
    again: bool,
    more: str = "",
    rule: str = "A transaction that takes longer is aborted; readers see none of its rows.",
    **fields: Any,
) -> SinkTimedOut:
    """Return the error for a transaction that exceeded its timeout; `more` is appended to the fact."""
    return SinkTimedOut(
        f"A transaction of the sink {sink!r} had {rows} rows after {seconds:.1f} s, and its timeout is {timeout:g} s"
        f"{more}.",
        rule=rule,
        remedy=f"Set the sink's timeout above {timeout:g} s, or make batches smaller"
        + ("." if again else f"; after {MAX_TIMEOUTS_IN_A_ROW} timeouts in a row the sink does not retry."),
        sink=sink,
        rows=rows,
        seconds=seconds,
        timeout=timeout,
        again=again,
        **fields,
    )


def not_started_error(sink: str) -> StateError:
    """Return the error for a write before the sink was started."""
    return StateError(
        f"The sink {sink!r} is not started.",
        rule="A sink must fence earlier processes and read its progress before it writes.",
        remedy="Call start() first, and again after an error.",
        sink=sink,
    )
