"""Snapshots with wrong values are refused by `restore`, or give something that works: never a raw error, then or later.

Each seed mutates real snapshots at one to three places, restores them, and uses what it gets in every way.
"""

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from floodmark._util.codec import Snapshot
from floodmark.errors import FloodmarkError, SnapshotInvalid
from floodmark.progress import (
    BoundedDisorder,
    Coalescer,
    Generator,
    GroupedCoalescer,
    Idleness,
    OriginWatermarks,
    Punctuated,
    Tracker,
)
from support.examples import examples, is_full

LAST = 2**63 - 1
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "x",
        "p0",
        "active",
        "idle",
        0,
        1,
        2,
        -1,
        3,
        7,
        100,
        1.5,
        1e300,
        [],
        {},
        [[]],
        [0],
        [1, 2],
    ),
    *(LAST, LAST - 1, LAST + 1, -LAST - 1, -LAST - 2, 2**64, -(2**64), 2**200, [None], {"p0": 1}, "hold", "exclude"),
)
Action = Callable[[], object]
RULES: dict[str, Generator] = {"t": BoundedDisorder(2), "u": Punctuated()}


def tracker() -> Tracker:
    made = Tracker(["p0", "p1", 7, "7"], max_pending=20)
    made.update_batch("p0", [1, 2, 4, 5, 9], [10, 20, 40, 50, 90])
    made.update("p0", 6, 2, False, 5)
    made.update("p0", 6, 0, False, 5, attempt=2)
    made.update("p0", 7, 3, True, 5)
    made.update("p0", 11, 1, False, 5)
    made.update_batch("p1", [1, 2, 3], [10, 20, 30], attempt=[1, 0, 2])
    made.update("p1", 2, 0, True, 5)
    made.close("p1")
    made.add("late", after=4, watermark=9)
    return made


def coalescer() -> Coalescer:
    made = Coalescer(["p0", "p1", "p2", 7], keys=["t", "u", "v"], revived="exclude")
    made.watermark_batch(["p0", "p1", "p2", 7], {"t": [20, 10, 12, 30], "u": [5, 4, 3, 2]}, now=4)
    made.idle("p0", 5)
    made.idle("p1", 5)
    made.event("p1", 5)
    made.finish(7, 5)
    made.drop_watermark("v")
    made.add("p3", revived="hold")
    return made


def grouped() -> GroupedCoalescer:
    made = GroupedCoalescer({"a": ["p0", "p1"], "b": ["p0"]}, revived="exclude")
    for group, name, time in (("a", "p0", 5), ("a", "p1", 9), ("b", "p0", 7)):
        made.watermark(group, name, "t", time)
    made.idle("a", "p0")
    made.drop_watermark("w")
    return made


def origins() -> OriginWatermarks:
    made = OriginWatermarks(
        RULES, origins=["p0", "p1", "p2"], now=0, idle=Idleness(timeout=50), future=1000, after_finish="ignore"
    )
    made.events("p0", {"t": [4, 9, 5000]}, now=1, marks={"u": [3]})
    made.event("p1", {"t": 7}, now=2, marks={"u": 6})
    made.declare_idle("p1", now=3)
    made.finish("p2", now=3)
    made.event("p2", {"t": 9}, now=4)
    return made


def use_tracker(snapshot: Snapshot) -> Iterator[Action]:
    made = Tracker.restore(snapshot)
    yield made.statistics
    for origin in made.origins:
        yield partial(made.gaps, origin)
        for sequence in (*range(1, 12), LAST):
            yield partial(made.missing_chunks, origin, sequence, 5)
            yield partial(made.is_complete, origin, sequence)
            yield partial(made.update, origin, sequence, sequence % 3, sequence % 3 == 2, sequence, sequence % 2)
        yield partial(made.update_batch, origin, range(3, 15), range(12))
        yield partial(
            made.update_batch, [origin] * 3, [6, 6, LAST], [1, 2, 3], chunk=[0, 1, 1], last=[False, True, True]
        )
        yield partial(made.update_batch, origin, [1, 3, 16], [1, 2, 3], attempt=[5, 5, 5])
    for other in (tracker(), made, Tracker.restore(snapshot), Tracker()):
        yield partial(made.merge, other)
    yield partial(tracker().merge, Tracker.restore(snapshot))
    yield lambda: made.watermark
    yield partial(made.add, "new")
    yield partial(made.close, "new")
    yield lambda: made.watermark
    yield lambda: Tracker.restore(json.loads(json.dumps(made.snapshot())))


def use_coalescer(snapshot: Snapshot) -> Iterator[Action]:
    made = Coalescer.restore(snapshot)
    for time, name in enumerate(made.inputs, start=20):
        for key in ("t", "u", "w"):
            yield partial(made.watermark, name, key, time, time)
            yield partial(made.last_of, name, key)
            yield partial(made.current, key)
            yield partial(made.top, key)
        yield partial(made.event, name, 5)
        yield partial(made.watermark_batch, [name], {"t": [70], "u": [80]})
        yield partial(made.idle, name)
        yield partial(made.state_of, name)
    yield made.partial_keys
    yield lambda: (str(made.explain()), made.is_idle, made.is_finished)
    for number in range(5):
        yield partial(made.add, f"new{number}")
    for name in made.inputs:
        yield partial(made.finish, name)
        yield partial(made.remove, name)
    yield lambda: str(made.explain())
    yield lambda: Coalescer.restore(json.loads(json.dumps(made.snapshot())))


def use_grouped(snapshot: Snapshot) -> Iterator[Action]:
    made = GroupedCoalescer.restore(snapshot)
    for group in ("a", "b", "p0", "x", 0, 1):
        for name in ("p0", "p1", "x", 0, 1):
            for time in (5, 50):
                yield partial(made.watermark, group, name, "t", time)
            yield partial(made.event, group, name)
            yield partial(made.idle, group, name)
        yield partial(made.add, group, "new")
        yield partial(made.explain_group, group)
        yield partial(made.finish, group, "new")
    yield lambda: (str(made.explain()), made.partial_keys(), made.is_idle, made.current("t"))
    yield partial(made.add_group, "new", ["p0"])
    yield lambda: GroupedCoalescer.restore(json.loads(json.dumps(made.snapshot())))
    for group in ("a", "b"):
        yield partial(made.remove_group, group)


def use_origins(snapshot: Snapshot) -> Iterator[Action]:
    idle = Idleness(timeout=50, remove_after=900)
    made = OriginWatermarks.restore(snapshot, RULES, now=10, idle=idle, future=1000, after_finish="ignore")
    yield partial(made.tick, 11)
    for origin in made.origins:
        yield partial(made.event, origin, {"t": 30, "u": 30}, now=12, marks={"u": 20})
        yield partial(made.events, origin, {"t": [40, 5000]}, now=13, marks={"u": [31]})
        yield partial(made.declare_idle, origin, now=14)
        yield partial(made.event, origin, {}, now=15)
        yield partial(made.decide, origin, "revive", now=16)
        yield partial(made.decide, origin, "idle", now=17)
    yield partial(made.tick, 500, caught_up=True)
    yield partial(made.tick, 5000, caught_up=True)
    yield lambda: (made.activity(), str(made.explain()), made.is_idle)
    yield lambda: (made.current("t"), made.current("u"))
    yield partial(made.add, "new", now=20)
    yield lambda: OriginWatermarks.restore(json.loads(json.dumps(made.snapshot())), RULES, now=30)
    for origin in made.origins:
        yield partial(made.finish, origin, now=40)
        yield partial(made.remove, origin)
    yield partial(made.drop_watermark, "t")


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Snapshot], Iterator[Action]]]] = {
    "tracker": (tracker, use_tracker),
    "coalescer": (coalescer, use_coalescer),
    "grouped": (grouped, use_grouped),
    "origins": (origins, use_origins),
}


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key or index) of a JSON value."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def mutate(snapshot: Snapshot, dice: random.Random) -> Snapshot:
    mutated = copy.deepcopy(snapshot)
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        container, key = dice.choice(list(places(mutated)))
        old = container[key]
        kind = dice.choice(["value", "value", "value", "near", "delete", "copy", "other"])
        if kind == "value":
            container[key] = copy.deepcopy(dice.choice(VALUES))
        elif kind == "near" and type(old) is int:
            container[key] = old + dice.choice([-2, -1, 1, 2])
        elif kind == "delete":
            del container[key]
        elif kind == "copy" and isinstance(container, list):
            container.insert(dice.randrange(len(container) + 1), copy.deepcopy(old))
        elif kind == "other":
            source, place = dice.choice(list(places(mutated)))
            container[key] = copy.deepcopy(source[place])
    return mutated


@pytest.mark.parametrize(("make", "use"), KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("seed", range(5 if is_full() else 2))
def test_a_mutated_snapshot_is_refused_or_works(
    make: Callable[[], Any], use: Callable[[Snapshot], Iterator[Action]], seed: int
) -> None:
    dice = random.Random(seed)
    snapshot = json.loads(json.dumps(make().snapshot()))
    outcomes = {"refused": 0, "works": 0}
    for number in range(examples(1000)):
        mutated = mutate(snapshot, dice)
        kept = json.dumps(mutated)
        try:
            actions = list(use(mutated))
        except SnapshotInvalid:
            outcomes["refused"] += 1
            continue
        outcomes["works"] += 1
        for action in actions:
            try:
                action()
            except FloodmarkError:
                pass
            except Exception as error:
                raise AssertionError(f"seed {seed}, mutation {number}: {error!r} from {kept}") from error
    assert min(outcomes.values()) > 10, outcomes
