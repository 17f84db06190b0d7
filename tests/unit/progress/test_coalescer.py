"""Claims about the coalescer, one a test: what it explains, what it refuses, and that nothing changes when it does."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from floodmark.errors import FloodmarkError
from floodmark.progress import Coalescer, Watermark


def test_explain_tells_who_holds_the_minimum_and_since_when() -> None:
    merged = Coalescer(["p0", "p1", "p2", "p3"])
    merged.watermark("p0", "order_time", 10, now=500)
    merged.watermark("p1", "order_time", 30, now=700)
    merged.idle("p2", now=800)
    merged.finish("p3", now=900)
    merged.watermark("p1", "order_time", 31, now=950)
    view = merged.explain().keys["order_time"]
    assert (view.watermark, view.top, view.holders, view.since) == (10, 31, ("p0",), 500)
    assert str(merged.explain()) == "\n".join(
        [
            "order_time: at 10, held by p0 since 500",
            "  p0: active, at 10 since 500, holds",
            "  p1: active, at 31 since 950",
            "  p2: idle, no watermark yet since 800",
            "  p3: finished, no watermark yet since 900",
        ]
    )


def test_who_has_not_spoken_holds_since_it_was_added_or_woke() -> None:
    merged = Coalescer()
    merged.add("p0", now=1)
    merged.add("p1", now=2)
    merged.watermark("p0", "order_time", 10, now=5)
    assert merged.explain().keys["order_time"].holders == ("p1",)
    assert merged.explain().keys["order_time"].since == 2
    merged.idle("p1", now=6)
    merged.event("p1", now=7)
    assert merged.explain().keys["order_time"].since == 7


def test_a_laggard_that_is_left_out_is_shown_as_such() -> None:
    merged = Coalescer(["p0", "p1"], revived="exclude")
    merged.watermark("p0", "order_time", 5)
    merged.watermark("p1", "order_time", 9)
    merged.idle("p0")
    merged.event("p0")
    assert "p0: active, at 5, left out until it has caught up" in str(merged.explain())


def test_a_key_that_only_some_inputs_bring_is_named_and_holds_itself_alone() -> None:
    merged = Coalescer(["left", "right"])
    for name, key in (("left", "a"), ("left", "b"), ("right", "b")):
        merged.watermark(name, key, 10)
    assert merged.partial_keys() == {"a": ("right",)}
    assert (merged.current("a"), merged.current("b")) == (None, 10)
    assert "never on this key, though on others: right" in str(merged.explain())
    merged.drop_watermark("a")
    assert merged.partial_keys() == {}


def test_an_input_that_never_spoke_does_not_lack_a_key_it_is_just_silent() -> None:
    merged = Coalescer(["left", "right"])
    merged.watermark("left", "a", 10)
    assert merged.partial_keys() == {}
    assert merged.explain().keys["a"].holders == ("right",)


def test_ignored_watermarks_are_counted() -> None:
    merged = Coalescer(["p0"], not_rising="ignore")
    for time in (5, 5, 4, 6):
        merged.watermark("p0", "order_time", time)
    merged.watermark_batch(["p0"], {"order_time": [6]})
    assert merged.explain().ignored == 3


def test_a_dropped_key_still_shows_that_its_input_is_active() -> None:
    merged = Coalescer(["p0", "p1"])
    merged.drop_watermark("noise")
    merged.idle("p0")
    merged.watermark("p0", "noise", 1)
    assert merged.state_of("p0") == "active"
    assert merged.watermark("p1", "order_time", 5) == ()


def test_many_inputs_come_and_go_and_the_minimum_is_right() -> None:
    merged = Coalescer()
    for number in range(100):
        merged.add(number)
        merged.watermark(number, "t", number)
    assert merged.current("t") == 0
    for number in range(0, 99):
        assert merged.remove(number) == (Watermark("t", number + 1),)
    merged.add("late")
    assert merged.watermark(99, "t", 1000) == ()
    assert merged.watermark("late", "t", 500) == (Watermark("t", 500),)


def test_a_batch_takes_numpy_and_arrow_and_an_empty_one_does_nothing() -> None:
    merged = Coalescer(["p0", "p1"])
    signals = merged.watermark_batch(["p0", "p1"], {"a": np.array([1, 2]), "b": pa.array([4, 3])})
    assert signals == (Watermark("a", 1), Watermark("b", 3))
    assert merged.watermark_batch([], {"c": []}) == ()
    assert merged.keys == ("a", "b")


def test_a_laggard_catches_up_in_a_batch_as_it_does_alone() -> None:
    merged = Coalescer(["p0", "p1"], revived="exclude")
    merged.watermark_batch(["p0", "p1"], {"t": [5, 9]})
    merged.idle("p0")
    merged.event("p0")
    assert merged.watermark_batch(["p0", "p1"], {"t": [8, 12]}) == (Watermark("t", 12),)
    assert merged.watermark_batch(["p0", "p1"], {"t": [13, 20]}) == (Watermark("t", 13),)


def batch(names: object, times: object) -> Callable[[Coalescer], object]:
    return lambda merged: merged.watermark_batch(names, times)  # type: ignore[arg-type]


def watermark(*values: object) -> Callable[[Coalescer], object]:
    return lambda merged: merged.watermark(*values)  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[Coalescer], object], str]] = {
    "unknown input": (watermark("z", "a", 5), "unknown-input"),
    "input that is a list": (watermark(["p0"], "a", 5), "unknown-input"),
    "input that is a list, in a batch": (batch([["p0"]], {"a": [50]}), "unknown-input"),
    "ragged column": (batch(["p0", "p1"], {"a": [[50], [51, 52]]}), "batch-invalid"),
    "unknown key": (watermark("p0", "z", 5), "unknown-key"),
    "time as float": (watermark("p0", "a", 5.0), "not-int64"),
    "time as bool": (watermark("p0", "a", True), "not-int64"),
    "time beyond 64 bits": (watermark("p0", "a", 2**63), "not-int64"),
    "time of MAX": (watermark("p0", "a", 2**63 - 1), "reserved-time"),
    "now as text": (watermark("p0", "a", 50, "x"), "not-int64"),
    "not rising": (watermark("p0", "a", 10), "watermark-not-rising"),
    "finished input": (watermark("done", "a", 50), "input-finished"),
    "unknown input in a batch": (batch(["p0", "z"], {"a": [50, 50]}), "unknown-input"),
    "finished input in a batch": (batch(["p0", "done"], {"a": [50, 50]}), "input-finished"),
    "input twice in a batch": (batch(["p0", "p0"], {"a": [50, 51]}), "batch-invalid"),
    "unknown key in a batch": (batch(["p0"], {"a": [50], "z": [1]}), "unknown-key"),
    "column too long": (batch(["p0"], {"a": [50, 51]}), "batch-invalid"),
    "column of floats": (batch(["p0"], {"a": [50.0]}), "not-int64"),
    "column with MAX": (batch(["p0"], {"a": [2**63 - 1]}), "reserved-time"),
    "event of an unknown input": (lambda merged: merged.event("z"), "unknown-input"),
    "idle as of nonsense": (lambda merged: merged.idle("p0", now="x"), "not-int64"),  # type: ignore[arg-type]
    "finish as of nonsense": (lambda merged: merged.finish("p0", now=2**63), "not-int64"),
    "input twice": (lambda merged: merged.add("p0"), "duplicate-name"),
    "input without a name": (lambda merged: merged.add(1.5), "invalid-option"),  # type: ignore[arg-type]
    "unknown policy of an input": (lambda merged: merged.add("n", revived="x"), "invalid-option"),  # type: ignore[arg-type]
    "unknown policy": (lambda merged: Coalescer(revived="x"), "invalid-option"),  # type: ignore[arg-type]
    "unknown choice": (lambda merged: Coalescer(not_rising="x"), "invalid-option"),  # type: ignore[arg-type]
    "key without a name": (lambda merged: Coalescer(keys=[""]), "invalid-value"),
    "watermark of an unnamed key": (lambda merged: Watermark("", 5), "invalid-value"),
    "watermark at the end of time": (lambda merged: Watermark("a", 2**63 - 1), "reserved-time"),
    "current of an unknown key": (lambda merged: merged.current("z"), "unknown-key"),
    "top of an unknown key": (lambda merged: merged.top("z"), "unknown-key"),
    "state of an unknown input": (lambda merged: merged.state_of("z"), "unknown-input"),
    "snapshot of another version": (
        lambda merged: Coalescer.restore(merged.snapshot() | {"version": 2}),
        "snapshot-version-unknown",
    ),
    "snapshot of another kind": (lambda merged: Coalescer.restore({"kind": "x"}), "snapshot-invalid"),
    "snapshot that is none": (lambda merged: Coalescer.restore([]), "snapshot-invalid"),  # type: ignore[arg-type]
    "snapshot with a wrong state": (
        lambda merged: Coalescer.restore(merged.snapshot() | {"inputs": [["p0", "asleep", None, None]]}),
        "snapshot-invalid",
    ),
}


@pytest.mark.parametrize(("action", "code"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused_and_nothing_changes(action: Callable[[Coalescer], object], code: str) -> None:
    merged = Coalescer(["p0", "p1", "done"], keys=["a"])
    merged.finish("done")
    merged.watermark("p0", "a", 10)
    before = merged.snapshot()
    with pytest.raises(FloodmarkError) as refusal:
        action(merged)
    assert refusal.value.code == code
    assert merged.snapshot() == before
