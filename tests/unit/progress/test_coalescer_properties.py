"""Random histories of merging, held against a model that looks at everything again after each step."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from floodmark.errors import InputFinished, UnknownInput, WatermarkNotRising
from floodmark.progress import IDLE, Coalescer, NotRising, Revived, Signal, Watermark
from support.examples import examples

NAMES = ("p0", "p1", "p2", "p3")
KEYS = ("order_time", "ship_time")
KINDS = ("watermark", "watermark", "watermark", "event", "idle", "finish", "revive", "add", "remove")
ACTIONS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.sampled_from(KEYS), st.integers(0, 12)), max_size=60
)


@dataclass
class ModelInput:
    state: str = "active"
    values: dict[str, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)


class Model:
    """The rules in their plainest form."""

    def __init__(self, names: tuple[str, ...], revived: Revived) -> None:
        self.inputs = {name: ModelInput() for name in names}
        self.revived = revived
        self.emitted: dict[str, int | None] = {}
        self.top: dict[str, int] = {}
        self.said_idle = False

    def release(self) -> tuple[Signal, ...]:
        live = [one for one in self.inputs.values() if one.state != "finished"]
        all_idle = bool(live) and all(one.state == "idle" for one in live)
        signals: list[Signal] = []
        for key, before in self.emitted.items():
            taking_part = [one for one in live if one.state == "active" and key not in one.left_out]
            values = [one.values[key] for one in taking_part if key in one.values]
            spoke = len(values) == len(taking_part)
            low = self.top.get(key) if all_idle else min(values, default=None) if spoke else None
            if low is not None and (before is None or low > before):
                self.emitted[key] = low
                signals.append(Watermark(key, low))
        if all_idle and not self.said_idle:
            self.said_idle = True
            signals.append(IDLE)
        return tuple(signals)

    def revive(self, one: ModelInput) -> None:
        if one.state != "active":
            one.state, one.left_out = "active", set()
            self.said_idle = False
            for key, out in self.emitted.items():
                if self.revived == "exclude" and out is not None and one.values.get(key, out - 1) < out:
                    one.left_out.add(key)

    def play(self, kind: str, name: str, key: str, time: int, not_rising: NotRising) -> tuple[Signal, ...] | str:
        if kind == "add":
            if name in self.inputs:
                return "duplicate-name"
            self.inputs[name] = ModelInput()
            self.said_idle = False
            return ()
        one = self.inputs.get(name)
        if one is None:
            return "unknown-input"
        if kind == "remove":
            del self.inputs[name]
            return self.release()
        if kind == "revive":
            self.revive(one)
            return self.release()
        if one.state == "finished":
            return "input-finished"
        if kind == "finish":
            one.state = "finished"
            return self.release()
        if kind == "idle":
            one.state, one.left_out = "idle", set()
            return self.release()
        if kind == "event":
            self.revive(one)
            return self.release()
        rises = key not in one.values or time > one.values[key]
        if not rises and not_rising == "fail":
            return "watermark-not-rising"
        self.emitted.setdefault(key, None)
        self.revive(one)
        if rises:
            one.values[key] = time
            self.top[key] = max(time, self.top.get(key, time))
            out = self.emitted[key]
            if out is not None and time >= out:
                one.left_out.discard(key)
        return self.release()


def play(merged: Coalescer, kind: str, name: str, key: str, time: int) -> tuple[Signal, ...] | str:
    try:
        if kind == "watermark":
            return merged.watermark(name, key, time, now=time)
        if kind == "idle":
            return merged.idle(name)
        if kind == "finish":
            return merged.finish(name)
        if kind == "remove":
            return merged.remove(name)
        if kind == "revive":
            return merged.revive(name)
        if kind == "event":
            return merged.event(name)
        merged.add(name)
    except (InputFinished, UnknownInput, WatermarkNotRising) as error:
        return error.code
    except ValueError as error:
        return getattr(error, "code", "?")
    return ()


def by_key(outcome: tuple[Signal, ...] | str) -> object:
    """Keys are apart, so the order between them is nobody's business; IDLE comes last."""
    if isinstance(outcome, str):
        return outcome
    watermarks = [signal for signal in outcome if isinstance(signal, Watermark)]
    assert outcome == (*watermarks, *([IDLE] if IDLE in outcome else []))
    return sorted(watermarks), IDLE in outcome


@given(
    ACTIONS,
    st.sampled_from(["hold", "exclude"]),
    st.sampled_from(["fail", "ignore"]),
    st.integers(0, 4),
    st.integers(0, 60),
)
@example(
    actions=[
        *(("watermark", name, "order_time", time) for name, time in [("p0", 11), ("p1", 1), ("p2", 2)]),
        *((kind, name, "order_time", 0) for kind, name in [("idle", "p0"), ("idle", "p1"), ("event", "p1")]),
        *((kind, name, "ship_time", 5) for kind, name in [("idle", "p2"), ("watermark", "p0")]),
    ],
    revived="exclude",
    not_rising="fail",
    inputs=3,
    restart=60,
)
@settings(max_examples=examples(400))
def test_every_history_gives_what_the_model_gives(
    actions: list[tuple[str, str, str, int]], revived: Revived, not_rising: NotRising, inputs: int, restart: int
) -> None:
    merged = Coalescer(NAMES[:inputs], revived=revived, not_rising=not_rising)
    model = Model(NAMES[:inputs], revived)
    for number, (kind, name, key, time) in enumerate(actions):
        if number == restart:
            merged = Coalescer.restore(json.loads(json.dumps(merged.snapshot())))
        expected = model.play(kind, name, key, time, not_rising)
        assert by_key(play(merged, kind, name, key, time)) == by_key(expected), (number, kind, name, key, time)
        assert {key: merged.current(key) for key in merged.keys} == model.emitted
        assert {name: merged.state_of(name) for name in merged.inputs} == {
            name: one.state for name, one in model.inputs.items()
        }


@given(ACTIONS, st.sampled_from(["hold", "exclude"]))
def test_the_holders_are_who_stands_lowest_or_has_not_spoken(
    actions: list[tuple[str, str, str, int]], revived: Revived
) -> None:
    merged, model = Coalescer(NAMES, revived=revived, not_rising="ignore"), Model(NAMES, revived)
    for kind, name, key, time in actions:
        play(merged, kind, name, key, time)
        model.play(kind, name, key, time, "ignore")
    for key, view in merged.explain().keys.items():
        active = {n: one for n, one in model.inputs.items() if one.state == "active" and key not in one.left_out}
        silent = {n for n, one in active.items() if key not in one.values}
        lowest = min((one.values[key] for one in active.values() if key in one.values), default=None)
        at_lowest = {n for n, one in active.items() if one.values.get(key) == lowest}
        assert set(view.holders) == (silent or (at_lowest if lowest is not None else set()))
        assert str(view).count("\n") >= len(merged.inputs)


@given(st.permutations(NAMES), st.dictionaries(st.sampled_from(NAMES), st.integers(0, 50), min_size=1))
def test_the_last_watermark_does_not_depend_on_the_order_of_going_idle(
    order: list[str], values: dict[str, int]
) -> None:
    merged = Coalescer(NAMES)
    for name, time in values.items():
        merged.watermark(name, "order_time", time)
    for name in order:
        merged.idle(name)
    assert merged.current("order_time") == max(values.values())


@given(ACTIONS)
def test_what_leaves_rises_strictly_on_each_key(actions: list[tuple[str, str, str, int]]) -> None:
    merged = Coalescer(NAMES, not_rising="ignore")
    left: dict[str, list[int]] = {key: [] for key in KEYS}
    for action in actions:
        outcome = play(merged, *action)
        for signal in outcome:
            if isinstance(signal, Watermark):
                left[signal.key].append(signal.time)
    for times in left.values():
        assert times == sorted(set(times))


@given(ACTIONS, st.sampled_from(NAMES), st.sampled_from(["hold", "exclude"]))
def test_to_finish_is_to_be_removed(actions: list[tuple[str, str, str, int]], leaving: str, revived: Revived) -> None:
    finished, removed = (Coalescer(NAMES, revived=revived, not_rising="ignore") for _ in range(2))
    harmless = [action for action in actions if action[0] in ("watermark", "event", "idle")]
    for action in harmless[: len(harmless) // 2]:
        assert play(finished, *action) == play(removed, *action)
    assert finished.finish(leaving) == removed.remove(leaving)
    for action in harmless[len(harmless) // 2 :]:
        if action[1] != leaving:
            assert play(finished, *action) == play(removed, *action)


@given(
    ACTIONS,
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 20), st.integers(0, 20)), unique_by=lambda row: row[0]),
)
def test_a_batch_leaves_the_same_state_as_its_rows(
    actions: list[tuple[str, str, str, int]], rows: list[tuple[str, int, int]]
) -> None:
    one_by_one, at_once = (Coalescer(NAMES, not_rising="ignore") for _ in range(2))
    for action in actions:
        play(one_by_one, *action)
        play(at_once, *action)
    rows = [row for row in rows if row[0] in at_once.inputs and at_once.state_of(row[0]) != "finished"]
    columns = {KEYS[0]: [row[1] for row in rows], KEYS[1]: [row[2] for row in rows]}
    # A batch has no order: all its inputs are active before the first watermark is weighed.
    for name, _, _ in rows:
        one_by_one.event(name)
    at_once.watermark_batch([row[0] for row in rows], columns, now=7)
    for place, (name, _, _) in enumerate(rows):
        for key in KEYS:
            one_by_one.watermark(name, key, columns[key][place], now=7)
    for key in KEYS if rows else ():
        assert (at_once.current(key), at_once.top(key)) == (one_by_one.current(key), one_by_one.top(key))
        for one in at_once.inputs:
            assert at_once.last_of(one, key) == one_by_one.last_of(one, key)


def test_a_batch_that_revives_inputs_releases_all_keys() -> None:
    merged = Coalescer(["p0", "p1", "p2"], revived="exclude")
    merged.watermark_batch(["p0", "p1", "p2"], {"order_time": [20, 10, 12]})
    for step, name in ((merged.idle, "p0"), (merged.idle, "p1"), (merged.event, "p1"), (merged.idle, "p2")):
        step(name)
    assert merged.current("order_time") == 12
    assert merged.watermark_batch(["p0"], {"ship_time": [5]}) == (Watermark("order_time", 20),)
    assert merged.watermark_batch(["p1"], {"ship_time": [7]}) == (Watermark("ship_time", 5),)


def test_a_batch_that_fails_changes_nothing() -> None:
    merged = Coalescer(["p0", "p1"])
    merged.watermark_batch(["p0", "p1"], {"order_time": [5, 6]})
    merged.idle("p0")
    before = merged.snapshot()
    with pytest.raises(WatermarkNotRising) as failure:
        merged.watermark_batch(["p0", "p1"], {"ship_time": [1, 1], "order_time": [9, 6]})
    assert failure.value.fields == {"input": "p1", "key": "order_time", "time": 6, "before": 6}
    assert merged.snapshot() == before
