"""The root of the tree and its main branches."""

from typing import ClassVar


class FloodmarkError(Exception):
    """The root of the tree: catch this to catch everything that Floodmark raises on purpose."""

    code: ClassVar[str] = "floodmark"

    def __init__(self, fact: str, *, rule: str, remedy: str, **fields: object) -> None:
        """Build the message from its three parts and keep them, and `fields`, as attributes."""
        super().__init__(fact, rule, remedy)
        self.fact = fact
        self.rule = rule
        self.remedy = remedy
        self.fields = fields

    def __str__(self) -> str:
        """Return the three parts and the code, for a person to read."""
        return f"{self.fact} {self.rule} {self.remedy} [{self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle with the fields, so that an error raised in another process arrives whole."""
        return _rebuild, (type(self), self.fact, self.rule, self.remedy, self.fields)


def _rebuild(
    kind: type[FloodmarkError], fact: str, rule: str, remedy: str, fields: dict[str, object]
) -> FloodmarkError:
    return kind(fact, rule=rule, remedy=remedy, **fields)


class InvalidValue(FloodmarkError, ValueError):
    """A value handed in can never be right, whatever the state."""

    code = "invalid-value"


class NotInt64(InvalidValue):
    """A time, sequence or chunk number is not a whole number of 64 bits."""

    code = "not-int64"


class InvalidOption(InvalidValue):
    """A setting has a value that makes no sense, such as a negative duration."""

    code = "invalid-option"


class DuplicateName(InvalidValue):
    """The same input, group or origin was named twice."""

    code = "duplicate-name"


class NotJson(InvalidValue):
    """A value to be kept is none that JSON can write and give back."""

    code = "not-json"


class SnapshotInvalid(InvalidValue):
    """A snapshot is not of the form that this version writes."""

    code = "snapshot-invalid"


class SnapshotVersionUnknown(SnapshotInvalid):
    """A snapshot was written by another version."""

    code = "snapshot-version-unknown"


class UnknownName(FloodmarkError, LookupError):
    """Something was named that is not there."""

    code = "unknown-name"


class StateError(FloodmarkError, RuntimeError):
    """The call is right in itself, but not in the state things are in."""

    code = "state"


class Conflict(StateError):
    """Somebody else was first: what the update was built on is not the newest any more."""

    code = "conflict"


class MissingPackage(StateError, ImportError):
    """A package is not installed that only some uses of Floodmark need."""

    code = "missing-package"
