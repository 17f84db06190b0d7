"""How a sink writes to a topic."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from floodmark.bindings import Place
from floodmark.errors import InvalidOption
from floodmark.sinks._startup import OnMissingBindings


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """How a sink writes. Durations are in seconds."""

    version: int = 1
    """That of the program: a process with a lower one than was recorded does not start."""
    partitions: int = 1
    """How many a topic gets that is made."""
    progress_topic: str | None = None
    """Where progress is recorded, if not in `<topic>.progress`."""
    marks: bool = True
    """Whether `<topic>.marks` tells how far time has come. One sink tells that of a topic."""
    stamp: bool = True
    """Whether each row has its timestamp in a header."""
    headers: bool = True
    """Whether rows may have headers. Without them, and without timestamps in them, rows are written much faster."""
    append: bool = False
    """Whether the sink may begin in a topic that has records."""
    on_missing_bindings: OnMissingBindings = "error"
    timeout: float = 60.0
    """After which Kafka gives up a transaction. Until then readers wait for what comes after it."""
    linger: float = 0.01
    max_rows: int | None = None
    max_bytes: int | None = None
    """After so many a transaction ends, where a timestamp does."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("version", "partitions", "timeout", "max_rows", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InvalidOption(
                    f"The option {name} of a sink is {value}.",
                    rule="It is above 0.",
                    remedy="Leave it out, or give a number above 0.",
                    option=name,
                    value=value,
                )


@dataclass(frozen=True, slots=True)
class Step:
    """A place between two timestamps of a batch, at which a transaction may end, and how far time has come there."""

    place: Place
    watermarks: Mapping[str, int] = field(default_factory=dict)
