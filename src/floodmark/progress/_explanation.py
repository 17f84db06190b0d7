"""Why a watermark stands where it stands: each input's word, who holds the minimum, and since when."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from floodmark._util.ints import INT64_MAX
from floodmark._util.names import Name
from floodmark.progress._inputs import ACTIVE, STATE_NAMES, Inputs, known_since
from floodmark.progress._key_state import KeyState


@dataclass(frozen=True, slots=True)
class InputView:
    """One input on one key. `since` is when it last spoke on the key; without a value, when it became what it is."""

    name: Name
    state: str
    time: int | None
    since: int | None
    left_out: bool
    holds: bool

    def __str__(self) -> str:
        """Return one line for a person."""
        where = "no watermark yet" if self.time is None else f"at {self.time}"
        since = "" if self.since is None else f" since {self.since}"
        note = ", holds" if self.holds else ", left out until it has caught up" if self.left_out else ""
        return f"{self.name}: {self.state}, {where}{since}{note}"


@dataclass(frozen=True, slots=True)
class KeyView:
    """One key: the watermark that left last, who holds it there since when, and who does not bring it at all.

    `lacking` names active inputs that bring other keys but never this one. Where they are not expected to,
    drop the key or take those inputs out; until then it stands still.
    """

    key: str
    watermark: int | None
    top: int | None
    holders: tuple[Name, ...]
    since: int | None
    lacking: tuple[Name, ...]
    inputs: tuple[InputView, ...] = field(repr=False)

    def __str__(self) -> str:
        """Return the answer in one line and the inputs below it."""
        where = "no watermark yet" if self.watermark is None else f"at {self.watermark}"
        since = "" if self.since is None else f" since {self.since}"
        who = f", held by {', '.join(map(str, self.holders))}{since}" if self.holders else ", held by nobody"
        lines = [f"{self.key}: {where}{who}", *(f"  {view}" for view in self.inputs)]
        if self.lacking:
            lines.append(f"  never on this key, though on others: {', '.join(map(str, self.lacking))}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The state of a coalescer, key by key. `ignored` counts watermarks that did not rise and were dropped."""

    is_idle: bool
    ignored: int
    keys: Mapping[str, KeyView]

    def __str__(self) -> str:
        """Return all keys for a person."""
        lines = ["idle: all inputs are idle"] if self.is_idle else []
        return "\n".join([*lines, *map(str, self.keys.values())])


def explain_key(state: KeyState, inputs: Inputs, keys: Mapping[str, KeyState]) -> KeyView:
    """Return the view of one key; `keys` tells which inputs bring others."""
    holding = set(state.holders(inputs.active_slots()))
    views: list[InputView] = []
    lacking: list[Name] = []
    earliest = INT64_MAX
    for name, slot in inputs.slots().items():
        time = state.last_of(slot)
        since = known_since(inputs.since[slot] if time is None else state.since[slot])
        is_active = inputs.state[slot] == ACTIVE
        if slot in holding and since is not None:
            earliest = min(earliest, since)
        if is_active and time is None and any(other.seen[slot] for other in keys.values()):
            lacking.append(name)
        views.append(
            InputView(
                name=name,
                state=STATE_NAMES[inputs.state[slot]],
                time=time,
                since=since,
                left_out=bool(state.left_out[slot]),
                holds=slot in holding,
            )
        )
    return KeyView(
        key=state.key,
        watermark=state.emitted,
        top=state.top,
        holders=tuple(view.name for view in views if view.holds),
        since=None if earliest == INT64_MAX else earliest,
        lacking=tuple(lacking),
        inputs=tuple(views),
    )
