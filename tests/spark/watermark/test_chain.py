"""The chain of watermarks, without Spark: what a batch saw, when it is told, and what a restart finds (F1 to F3)."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from floodmark.control import Home, WatermarkSteps
from floodmark.errors import FloodmarkError, TooManyOrigins
from floodmark.progress import OriginAction
from floodmark.spark.watermark.chain import OBSERVATION_TIMEOUT, MarkOffset, WatermarkChain, WatermarkSettings
from floodmark.spark.watermark.dataframes import declared_origins
from floodmark.spark.watermark.statistics import origin_id
from floodmark.testing import ManualClock
from support.examples import is_full

SECOND = 1_000_000
ACTIONS: Final[tuple[OriginAction, ...]] = get_args(OriginAction)


class World:
    """A home, a clock that only moves when somebody sleeps, and readers that come and go."""

    def __init__(self, home: Home) -> None:
        self.steps = WatermarkSteps(home)
        self.clock = ManualClock(1_000 * SECOND)
        self.ids = (f"life-{number}" for number in count(1))
        self.batches = count()
        self.on_sleep: Callable[[], object] = lambda: None

    def reader(self, frame: str = "frame", **changes: Any) -> WatermarkChain:
        values: dict[str, Any] = {
            "column": "t", "per": ("p",), "delay": 0, "idle": None, "future": None, "assume_caught_up": False,
        }  # fmt: skip
        settings = WatermarkSettings(**(values | changes))
        return WatermarkChain(
            self.steps, settings, frame, mint=lambda: next(self.ids), clock=self.clock.now, sleep=self._sleep
        )

    def tell(
        self,
        at: MarkOffset,
        batch: int | None = None,
        *,
        caught_up: bool = False,
        has_all_origins: bool = True,
        names: dict[str, str] | None = None,
        **newest: int,
    ) -> None:
        """File what a batch that ended at this offset saw."""
        statistics = {
            "newest": newest,
            "names": names or {},
            "rows": len(newest),
            "input_rows": len(newest),
            "has_all_origins": has_all_origins,
            "caught_up": caught_up,
        }
        number = next(self.batches) if batch is None else batch
        self.steps.observe(at.incarnation, at.seq, number, statistics, self.clock.now())

    def _sleep(self, micros: int) -> None:
        self.clock.advance(micros)
        self.on_sleep()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with Home.open(tmp_path / "home") as home:
        yield World(home)


def test_the_first_batch_has_a_step_of_its_own_and_no_watermark(world: World) -> None:
    reader = world.reader()
    assert reader.initial() is reader.initial()
    first = reader.advance(reader.initial())
    assert (first.seq, first.watermark, first.incarnation) == (1, None, reader.initial().incarnation)


def test_the_watermark_is_the_lowest_of_the_newest_and_stands_until_it_rises(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    assert (at.seq, at.watermark) == (2, 40)
    world.tell(at, a=200)
    assert reader.advance(at) is at
    world.tell(at, b=150)
    assert reader.advance(at).watermark == 150


def test_f1_what_a_batch_saw_is_waited_for(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    naps = count()

    def tell_late() -> None:
        if next(naps) == 3:
            world.tell(at, a=70)

    world.on_sleep = tell_late
    assert reader.advance(at).watermark == 70


def test_f1_but_not_for_ever_and_the_loss_is_counted(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    before = world.clock.now()
    assert reader.advance(at) is at
    assert world.clock.now() - before == pytest.approx(OBSERVATION_TIMEOUT, abs=10_000)
    waited = world.clock.now()
    assert reader.advance(at) is at, "once is enough"
    assert world.clock.now() == waited
    world.tell(at, a=5)
    after = reader.advance(at)
    assert after.watermark == 5
    step = world.steps.get(after.incarnation, after.seq)
    assert step is not None
    assert step.snapshot["missed"] == 1


def test_f1_what_comes_after_the_next_step_still_counts(world: World) -> None:
    reader = world.reader()
    first = reader.advance(reader.initial())
    world.tell(first, a=10, b=10)
    second = reader.advance(first)
    world.tell(second, a=50)
    world.tell(first, b=30)
    assert reader.advance(second).watermark == 30


def test_f2_two_queries_of_one_frame_never_mix(world: World) -> None:
    one, other = world.reader(), world.reader()
    at_one, at_other = one.advance(one.initial()), other.advance(other.initial())
    assert at_one.incarnation != at_other.incarnation
    world.tell(at_one, a=1000)
    world.tell(at_other, a=5)
    assert (one.advance(at_one).watermark, other.advance(at_other).watermark) == (1000, 5)


def test_f2_a_query_without_its_checkpoint_begins_anew_though_the_home_survives(world: World) -> None:
    old = world.reader()
    at = old.advance(old.initial())
    world.tell(at, a=1000)
    assert old.advance(at).watermark == 1000
    new = world.reader()
    assert new.advance(new.initial()).watermark is None


def test_f2_a_restart_goes_on_from_the_step_that_spark_knows(world: World) -> None:
    reader = world.reader("before")
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    world.tell(at, a=300)
    restarted = world.reader("after")
    at = restarted.advance(at)
    assert (at.frame, at.watermark, at.seq) == ("after", 40, 3)
    world.tell(at, b=200)
    assert restarted.advance(at).watermark == 200, "what a said before the restart is known"


def test_a_mark_is_said_again_once_in_each_run(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100)
    at = reader.advance(at)
    world.tell(at)
    assert reader.advance(at) is at
    restarted = world.reader()
    again = restarted.advance(at)
    assert (again.watermark, again.seq) == (100, at.seq + 1), "Spark counts a silent input as 0 after a restart"
    world.tell(again)
    assert restarted.advance(again) is again
    replaying = world.reader()
    replaying.note_replay()
    assert replaying.advance(again) is again, "the batch that runs again has said it"


def test_f2_where_the_home_went_on_without_spark_the_chain_forks(world: World) -> None:
    reader = world.reader()
    known = reader.advance(reader.initial())
    world.tell(known, a=100)
    unknown = reader.advance(known)
    world.tell(unknown, a=900)
    assert reader.advance(unknown).watermark == 900

    restarted = world.reader("after")
    forked = restarted.advance(known)
    assert forked.incarnation not in (known.incarnation, reader.initial().incarnation)
    assert (forked.seq, forked.watermark) == (2, 100), "what the lost batch saw is not this query's past"


def test_f3_a_batch_that_runs_again_is_not_counted_twice(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, batch=0, a=10)
    world.tell(at, batch=0, a=10)
    assert len(world.steps.observations(at.incarnation, at.seq)) == 1
    assert reader.advance(at).watermark == 10


def test_an_origin_is_idle_when_it_is_silent_and_all_is_read(world: World) -> None:
    reader = world.reader(idle=60 * SECOND)
    at = reader.advance(reader.initial())
    world.tell(at, caught_up=True, a=100, b=40)
    at = reader.advance(at)
    world.clock.advance(30 * SECOND)
    world.tell(at, caught_up=False, a=500)
    world.clock.advance(40 * SECOND)
    assert reader.advance(at) is at, "something is unread"
    world.tell(at, caught_up=True, a=600)
    assert reader.advance(at).watermark == 600


def test_available_now_says_something_after_every_batch_with_rows(world: World) -> None:
    reader = world.reader()
    reader.steps_every_batch = True
    at = reader.advance(reader.initial())
    world.tell(at, a=10, b=10)
    at = reader.advance(at)
    world.tell(at, a=20)
    after = reader.advance(at)
    assert (after.seq, after.watermark) == (at.seq + 1, 10)
    world.tell(after)
    assert reader.advance(after) is after


def test_a_checkpoint_without_its_home_is_refused(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=10)
    reader.advance(at)
    with pytest.raises(FloodmarkError, match="snapshot-invalid"):
        world.reader().advance(MarkOffset("frame", at.incarnation, 77, 10))
    with pytest.raises(FloodmarkError, match="unknown-incarnation"):
        world.reader().advance(MarkOffset("frame", "nobody", 3, 10))


def test_old_steps_are_forgotten(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    for time in range(10, 200, 10):
        world.tell(at, a=time)
        at = reader.advance(at)
        reader.forget_before(at, keep=5)
    assert world.steps.get(at.incarnation, 3) is None
    assert world.steps.get(at.incarnation, at.seq) is not None


def test_a_batch_with_more_origins_than_can_be_told_apart_stops_the_query(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, has_all_origins=False, a=10)
    with pytest.raises(TooManyOrigins, match=r"Batch 0 has more than 65,536 origins\."):
        reader.advance(at)


def test_what_a_batch_of_a_later_step_told_is_not_this_step_s_past(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=10)
    world.tell(replace(at, seq=at.seq + 1), a=99)
    assert reader.advance(at).watermark == 10


def test_names_of_origins_are_kept_with_the_step(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, names={"a": "south"}, a=10)
    at = reader.advance(at)
    world.tell(at, names={"b": "north"}, a=20, b=11)
    at = reader.advance(at)
    step = world.steps.get(at.incarnation, at.seq)
    assert step is not None
    assert step.snapshot["names"] == {"a": "south", "b": "north"}


def decide(world: World, at: MarkOffset, action: OriginAction, *origins: str) -> None:
    """Store what `floodmark origins` stores."""
    entries = [(origin, origin.upper(), action) for origin in origins]
    world.steps.decide(at.incarnation, entries, "command", world.clock.now())


def states_at(world: World, at: MarkOffset) -> dict[str, str]:
    step = world.steps.get(at.incarnation, at.seq)
    assert step is not None
    return {name: state for name, state, _, _ in step.snapshot["merged"]["inputs"]}


def declared(*origins: str, action: OriginAction = "revive") -> tuple[tuple[str, str, OriginAction], ...]:
    return tuple((origin, origin.upper(), action) for origin in origins)


def test_declared_origins_are_waited_for_before_their_first_row(world: World) -> None:
    reader = world.reader(origins=declared("a", "b"))
    at = reader.advance(reader.initial())
    assert states_at(world, at) == {"a": "active", "b": "active"}
    world.tell(at, a=100)
    assert reader.advance(at) is at, "b has not spoken"
    world.tell(at, b=70)
    at = reader.advance(at)
    assert at.watermark == 70
    step = world.steps.get(at.incarnation, at.seq)
    assert step is not None
    assert step.snapshot["names"] == {"a": "A", "b": "B"}


DECISIONS: dict[str, tuple[OriginAction, int, int]] = {
    # what is decided about b; the watermark after it; and after a row of b at 200 and one of a at 300
    "idle": ("idle", 100, 200),
    "finish": ("finish", 100, 300),
    "remove": ("remove", 100, 200),
    "revive": ("revive", 40, 200),
}


@pytest.mark.parametrize(("action", "at_once", "after_rows"), DECISIONS.values(), ids=DECISIONS)
def test_a_decision_is_carried_out_at_the_next_step(
    world: World, action: OriginAction, at_once: int, after_rows: int
) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    decide(world, at, action, "b")
    at = reader.advance(at)
    assert (at.seq, at.watermark) == (3, at_once), "also a decision that moves nothing makes a step"
    assert reader.advance(at) is at, "once"
    world.tell(at, a=300, b=200)
    assert reader.advance(at).watermark == after_rows


def test_an_origin_is_left_out_after_the_rows_that_it_has_sent_so_far(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    world.tell(at, a=150, b=41)
    decide(world, at, "remove", "b")
    at = reader.advance(at)
    assert (at.watermark, states_at(world, at)) == (150, {"a": "active"})


def test_a_revived_origin_is_waited_for_before_other_rows_count(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100)
    at = reader.advance(at)
    world.tell(at, a=150)
    decide(world, at, "revive", "b")
    at = reader.advance(at)
    assert at.watermark == 100
    world.tell(at, b=120)
    assert reader.advance(at).watermark == 120


def test_of_several_decisions_about_an_origin_the_last_counts(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40, c=50)
    at = reader.advance(at)
    for action, origin in (("finish", "b"), ("revive", "b"), ("revive", "c"), ("remove", "c")):
        decide(world, at, action, origin)  # type: ignore[arg-type]
    at = reader.advance(at)
    assert (at.watermark, states_at(world, at)) == (40, {"a": "active", "b": "active"})


def test_decisions_survive_a_restart_and_are_not_carried_out_twice(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    decide(world, at, "remove", "b")
    at = reader.advance(at)
    world.tell(at, a=200, b=150)
    restarted = world.reader("after")
    at = restarted.advance(at)
    assert (at.watermark, states_at(world, at)) == (150, {"a": "active", "b": "active"}), "b is back, as a new origin"


def test_what_is_decided_while_the_query_is_stopped_holds_when_it_starts(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    decide(world, at, "finish", "b")
    assert world.reader("after").advance(at).watermark == 100


def test_a_chain_that_forks_from_an_older_step_carries_decisions_out_again(world: World) -> None:
    reader = world.reader()
    known = reader.advance(reader.initial())
    world.tell(known, a=100, b=40)
    decide(world, known, "finish", "b")
    unknown = reader.advance(known)
    assert unknown.watermark == 100
    restarted = world.reader("after")
    forked = restarted.advance(known)
    assert (forked.incarnation != known.incarnation, forked.watermark) == (True, 100)
    decide(world, known, "revive", "b")
    at = restarted.advance(forked)
    assert states_at(world, at) == {"a": "active", "b": "active"}, "also one that was stored before the query was heard"


def test_a_command_outlives_the_declaration_that_the_program_repeats(world: World) -> None:
    reader = world.reader(origins=declared("a", "b"))
    at = reader.advance(reader.initial())
    world.tell(at, a=100)
    decide(world, at, "remove", "b")
    at = reader.advance(at)
    assert at.watermark == 100
    at = world.reader("again", origins=declared("a", "b")).advance(at)
    assert states_at(world, at) == {"a": "active"}
    more = declared("a", "b") + declared("c")
    at = world.reader("more", origins=more).advance(at)
    assert states_at(world, at) == {"a": "active", "c": "active"}
    fewer = declared("a") + declared("b") + declared("c", action="finish")
    at = world.reader("fewer", origins=fewer).advance(at)
    assert states_at(world, at) == {"a": "active", "c": "finished"}


def test_an_idle_origin_is_removed_after_a_while_and_its_name_with_it(world: World) -> None:
    reader = world.reader(idle=60 * SECOND, remove_idle=600 * SECOND, assume_caught_up=True)
    at = reader.advance(reader.initial())
    world.tell(at, names={"a": "south", "b": "north"}, a=100, b=40)
    at = reader.advance(at)
    world.clock.advance(60 * SECOND)
    world.tell(at, a=500)
    at = reader.advance(at)
    assert states_at(world, at) == {"a": "active", "b": "idle"}
    world.clock.advance(600 * SECOND)
    world.tell(at, a=600)
    at = reader.advance(at)
    step = world.steps.get(at.incarnation, at.seq)
    assert step is not None
    assert (states_at(world, at), step.snapshot["names"]) == ({"a": "active"}, {"a": "south"})


def test_a_revived_laggard_is_left_out_if_the_settings_say_so_also_after_a_restart(world: World) -> None:
    reader = world.reader(revived="exclude")
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    decide(world, at, "idle", "b")
    at = reader.advance(at)
    world.tell(at, a=200, b=50)
    at = reader.advance(at)
    assert at.watermark == 200
    at = world.reader("after", revived="hold").advance(at)
    assert world.steps.incarnation(at.incarnation).settings["revived"] == "hold", "the home has the new settings"


def test_an_idle_origin_with_rows_in_a_batch_holds_the_watermark_of_that_batch(world: World) -> None:
    reader = world.reader()
    at = reader.advance(reader.initial())
    world.tell(at, a=100, b=40)
    at = reader.advance(at)
    decide(world, at, "idle", "b")
    at = reader.advance(at)
    world.tell(at, a=300, b=200)
    assert reader.advance(at).watermark == 200, "whichever of them is listed first"


def test_declared_origins_have_the_ids_of_their_rows_and_the_action_of_their_state() -> None:
    states = {("orders", 3): "active", ("orders", None): "idle", ("x", True): "finished", ("y", "z"): "removed"}
    assert declared_origins(states, ["topic", "partition"]) == (  # type: ignore[arg-type]
        (origin_id("orders\x1f3"), "orders, 3", "revive"),
        (origin_id("orders\x1f\0"), "orders, null", "idle"),
        (origin_id("x\x1ftrue"), "x, true", "finish"),
        (origin_id("y\x1fz"), "y, z", "remove"),
    )
    assert declared_origins(["a", "b", "a"], ["p"]) == (
        (origin_id("a"), "a", "revive"),
        (origin_id("b"), "b", "revive"),
    )


@pytest.mark.parametrize("seed", range(20 if is_full() else 3))
def test_crashes_and_restarts_change_nothing_that_rows_and_decisions_have_brought_about(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    with Home.open(tmp_path / "steady") as one, Home.open(tmp_path / "crashing") as other:
        steady, crashing = World(one), World(other)
        for world in (steady, crashing):
            world.on_sleep = partial(world.clock.advance, OBSERVATION_TIMEOUT)
        options: dict[str, Any] = {"origins": declared("a", "b"), "revived": dice.choice(["hold", "exclude"])}
        readers = [world.reader(**options) for world in (steady, crashing)]
        offsets = [reader.advance(reader.initial()) for reader in readers]
        for number in range(12):
            times: dict[str, Any] = {
                origin: dice.randrange(10 * number, 10 * number + 40) for origin in "abcd" if dice.random() < 0.5
            }
            decisions = [(dice.choice(ACTIONS), dice.choice("abcd")) for _ in range(dice.choice([0, 0, 1, 2]))]
            for world, at in zip((steady, crashing), offsets, strict=True):
                world.tell(at, **times)
                for action, origin in decisions:
                    decide(world, at, action, origin)
            logged = offsets[1]
            offsets = [reader.advance(at) for reader, at in zip(readers, offsets, strict=True)]
            fate = dice.choice(["none", "restart", "crash before Spark has logged the offset"])
            if fate != "none":
                readers[1] = crashing.reader(f"frame-{number}", **options)
                offsets[1] = readers[1].advance(offsets[1] if fate == "restart" else logged)
            assert offsets[0].watermark == offsets[1].watermark, (number, fate)
            if decisions:
                assert states_at(steady, offsets[0]) == states_at(crashing, offsets[1]), (number, fate)
