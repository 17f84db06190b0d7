"""The keys of a coalescer: those it merges, those it was told of, and those it was told to drop."""

from collections.abc import Iterable

from floodmark.errors import UnknownKey
from floodmark.progress._inputs import Inputs
from floodmark.progress._key_state import KeyState
from floodmark.progress._signals import check_key


class Keys:
    """The state of each key. Without a declaration keys appear as they come; with one, any other is refused."""

    __slots__ = ("_inputs", "dropped", "is_closed", "states")

    def __init__(self, inputs: Inputs, declared: Iterable[str] | None) -> None:
        self._inputs = inputs
        self.states: dict[str, KeyState] = {}
        self.dropped: set[str] = set()
        self.is_closed = declared is not None
        for key in declared or ():
            self.create(check_key(key))

    def get(self, key: str) -> KeyState:
        """Return the state of a key that is merged already."""
        state = self.states.get(key)
        if state is None:
            raise unknown_key(key, self.states)
        return state

    def check(self, key: str) -> None:
        """Refuse a key that may not come."""
        if key not in self.states and key not in self.dropped:
            check_key(key)
            if self.is_closed:
                raise unknown_key(key, self.states)

    def take(self, key: str) -> KeyState | None:
        """Return the state of a key that may be new; None if it was dropped."""
        state = self.states.get(key)
        if state is None and key not in self.dropped:
            self.check(key)
            return self.create(key)
        return state

    def drop(self, key: str) -> None:
        """Forget a key and take no more of it."""
        self.dropped.add(check_key(key))
        self.states.pop(key, None)

    def create(self, key: str) -> KeyState:
        """Return the state of a new key, for which every active input is waited."""
        state = self.states[key] = KeyState(key, self._inputs.capacity)
        state.blocking = self._inputs.active
        return state


def unknown_key(key: object, known: Iterable[str]) -> UnknownKey:
    """Return the error for a key that is not known."""
    return UnknownKey(
        f"The key {key!r} is not known.",
        rule=f"The keys are: {', '.join(known) or 'none yet'}.",
        remedy="Correct the name, or declare the key.",
        key=key,
    )
