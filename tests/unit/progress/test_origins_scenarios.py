"""The source scenarios, row by row: what a source says before each row, under Floodmark's rulings.

A step is `t5 100@p0 -> 97`: at time 5, a row with time 100 from p0, and the watermarks that go before it. `t5 none`
lets time pass with nothing unread anywhere.
"""

from dataclasses import dataclass, field

import pytest

from floodmark.errors import FloodmarkError
from floodmark.progress import (
    AfterFinish,
    BoundedDisorder,
    Frame,
    Generator,
    Idleness,
    OriginWatermarks,
    Punctuated,
    Signal,
    WallClockLag,
)
from support.merging_script import KEY, show


@dataclass
class Source:
    generator: Generator = BoundedDisorder(3)
    origins: tuple[str, ...] = ("p0", "p1")
    idle: Idleness = Idleness(timeout=5)
    frame: Frame = Frame()
    future: int | None = None
    after_finish: AfterFinish = "fail"
    watermarks: OriginWatermarks = field(init=False)

    def __post_init__(self) -> None:
        self.watermarks = OriginWatermarks(
            {KEY: self.generator},
            origins=self.origins,
            now=0,
            idle=self.idle,
            frame=self.frame,
            future=self.future,
            after_finish=self.after_finish,
        )

    def run(self, script: str) -> None:
        now = 0
        for number, step in enumerate(script.split("|"), start=1):
            action, _, expected = (part.strip() for part in step.partition("->"))
            words = action.split()
            if words[0].startswith("t"):
                now = int(words.pop(0)[1:])
            try:
                found = show(self.play(words, now))
            except FloodmarkError as error:
                found = f"!{error.code}"
            assert found == (expected or "-"), f"step {number}, {action!r}: {found} instead of {expected or '-'}"

    def play(self, words: list[str], now: int) -> tuple[Signal, ...]:
        source = self.watermarks
        match words:
            case ["none"]:
                return source.tick(now, caught_up=True)
            case ["unread"]:
                return source.tick(now)
            case ["add", origin]:
                source.add(origin, now=now)
                return ()
            case ["remove", origin]:
                return source.remove(origin)
            case ["finish", origin]:
                return source.finish(origin, now=now)
            case ["decide", action, origin]:
                return source.decide(origin, action, now=now)  # type: ignore[arg-type]
            case ["revive", origin]:
                return source.revive(origin, now=now)
            case ["idle", origin]:
                return source.declare_idle(origin, now=now)
            case ["mark", row]:
                mark, _, origin = row.partition("@")
                return source.event(origin, {}, now=now, marks={KEY: int(mark)})
            case [row]:
                time, _, origin = row.partition("@")
                return source.event(origin or "p0", {KEY: int(time)}, now=now)
        raise AssertionError(words)


@dataclass(frozen=True)
class Constant:
    """A rule of the user's own that always says the same."""

    time: int

    def observe(self, state: object, time: int | None, mark: int | None, now: int) -> None:
        return None

    def watermark(self, state: object, now: int) -> int:
        return self.time


NEVER = Idleness()
ONE = ("p0",)

SCENARIOS: dict[str, tuple[Source, str]] = {
    "E01": (
        Source(),
        "t1 none -> - | t5 none -> IDLE | t5 none -> - | t5 100@p0 -> 97 | t5 90@p0 -> - | t5 101@p0 -> 98",
    ),
    "E02": (
        Source(idle=NEVER),
        "10@p0 -> - | 11@p0 -> - | 10@p1 -> 7 | 11@p1 -> 8 | 12@p1 -> - | 13@p0 -> 9",
    ),
    # No origin is not the same as idle origins: nobody can say that nothing flows.
    "E03": (Source(origins=()), "none -> - | none -> - | add p0 | none -> - | 10@p0 -> 7"),
    "E04": (
        Source(origins=ONE, idle=Idleness(timeout=10)),
        "t0 10@p0 -> 7 | t10 none -> IDLE | t10 10@p0 -> - | t10 none -> - | t20 none -> IDLE",
    ),
    "E06": (Source(origins=ONE, idle=NEVER, frame=Frame(0)), "-10@p0 -> - | 10@p0 -> - | idle p0 -> IDLE"),
    "E08a": (Source(BoundedDisorder(0)), "10@p0 -> - | remove p1 -> 10"),
    "E08b": (Source(BoundedDisorder(0)), "10@p0 -> - | 11@p1 -> 10 | remove p1 -> -"),
    "E10": (Source(Constant(42), origins=ONE), "41@p0 -> 41 | 40@p0 -> - | 50@p0 -> 42"),
    "E11a": (Source(origins=ONE, frame=Frame(2)), "10@p0 -> 6 | 11@p0 -> 8 | 12@p0 -> - | 13@p0 -> 10"),
    "E11b": (Source(origins=ONE, frame=Frame(2)), "11@p0 -> 8 | 15@p0 -> 12"),
    "E12": (Source(origins=ONE, frame=Frame(10)), "14@p0 -> 10 | 15@p0 -> - | 24@p0 -> 20"),
    "E13a": (Source(origins=ONE), "11@p0 -> 8 | 10@p0 -> -"),
    "E13b": (Source(origins=ONE), "11@p0 -> 8 | 7@p0 -> -"),
    # For us a row at exactly the watermark is on time, so nothing is taken off beyond the delay.
    "F16": (
        Source(BoundedDisorder(10), origins=ONE),
        "none -> - | 1337@p0 -> 1327 | 12345@p0 -> 12335 | 12280@p0 -> -",
    ),
    "F17": (
        Source(origins=ONE, idle=Idleness(timeout=10)),
        "t0 none -> - | t9 none -> - | t11 none -> IDLE | t12 5@p0 -> 2 | t21 none -> - | t22 none -> IDLE",
    ),
    "silent is not idle while something is unread": (
        Source(origins=ONE),
        "t0 10@p0 -> 7 | t100 unread -> - | t100 none -> IDLE",
    ),
    "idle off": (Source(idle=NEVER), "10@p0 -> - | t1000000 none -> -"),
    "declared": (Source(idle=NEVER), "10@p0 -> - | idle p1 -> 7 | idle p1 -> - | 9@p1 -> - | 13@p0 -> -"),
    "forbidden": (Source(idle=Idleness(timeout=5, declared=False)), "10@p0 -> - | idle p1 -> - | t9 none -> 7, IDLE"),
    "flush is framed": (
        Source(frame=Frame(10)),
        "27@p0 -> - | 38@p1 -> 20 | idle p1 -> - | idle p0 -> 30, IDLE",
    ),
    "finished": (Source(idle=NEVER), "10@p0 -> - | finish p1 -> 7 | 20@p0 -> 17 | finish p0 -> -"),
    "finished, refused": (Source(idle=NEVER), "finish p1 -> - | 9@p1 -> !input-finished | 10@p0 -> 7"),
    "finished, ignored": (
        Source(idle=NEVER, after_finish="ignore"),
        "10@p0 -> - | finish p1 -> 7 | 50@p1 -> - | 20@p0 -> 17 | revive p1 -> - | 30@p0 -> - | 25@p1 -> 22",
    ),
    "revived without a row": (
        Source(idle=NEVER),
        "10@p0 -> - | idle p1 -> 7 | revive p1 -> - | 20@p0 -> - | 12@p1 -> 9",
    ),
    "revived: silence counts from then": (
        Source(origins=ONE),
        "t0 10@p0 -> 7 | t5 none -> IDLE | t8 revive p0 -> - | t12 none -> - | t13 none -> IDLE",
    ),
    "decided: wait for one that has not spoken": (
        Source(origins=ONE, idle=NEVER),
        "decide revive p1 -> - | 10@p0 -> - | decide revive p1 -> - | 20@p1 -> 7",
    ),
    "decided: idle until its next row": (
        Source(idle=NEVER),
        "10@p0 -> - | decide idle p1 -> 7 | decide idle p1 -> - | 20@p1 -> - | 30@p0 -> 17",
    ),
    "decided: finished, whatever it sends": (
        Source(idle=NEVER, after_finish="ignore"),
        "10@p0 -> - | decide finish p1 -> 7 | decide finish p1 -> - | 5@p1 -> - | 30@p0 -> 27",
    ),
    "decided: finished before its first row": (
        Source(origins=ONE, idle=NEVER, after_finish="ignore"),
        "decide finish p1 -> - | 10@p0 -> 7 | 5@p1 -> - | 30@p0 -> 27",
    ),
    "decided: removed, then new": (
        Source(idle=NEVER),
        "10@p0 -> - | decide remove p1 -> 7 | decide remove p1 -> - | 5@p1 -> !unknown-input | decide revive p1 -> - | "
        "30@p0 -> - | 20@p1 -> 17",
    ),
    "decided: finished, then only idle": (
        Source(idle=NEVER, after_finish="ignore"),
        "10@p0 -> - | decide finish p1 -> 7 | decide idle p1 -> - | 20@p0 -> 17 | 19@p1 -> - | "
        "30@p0 -> - | 28@p1 -> 25",
    ),
    "decided: all finished, then one revived": (
        Source(idle=NEVER),
        "10@p0 -> - | 12@p1 -> 7 | decide finish p0 -> 9 | decide finish p1 -> - | decide revive p1 -> - | 20@p1 -> 17",
    ),
    "decided: no such action": (Source(), "decide forget p1 -> !invalid-option"),
    "removed after it was idle for long": (
        Source(idle=Idleness(timeout=5, remove_after=20)),
        "t0 10@p0 -> - | t0 12@p1 -> 7 | t4 30@p0 -> 9 | t5 none -> 27 | t24 40@p0 -> 37 | t25 unread -> - | "
        "t25 none -> - | t26 50@p1 -> !unknown-input | t26 41@p0 -> 38",
    ),
    "clock": (
        Source(WallClockLag(10), origins=ONE, idle=NEVER),
        "t100 95@p0 -> 90 | t101 85@p0 -> - | t105 none -> 95 | t106 unread -> 96 | t200 95@p0 -> - | t200 none -> 190",
    ),
    "clock does not wake the idle": (
        Source(WallClockLag(10), idle=NEVER),
        "t100 none -> 90 | idle p1 -> - | t110 none -> 100 | t120 none -> 110 | t130 200@p1 -> - | t130 none -> 120",
    ),
    "punctuated": (
        Source(Punctuated(), origins=ONE),
        "50@p0 -> - | mark 40@p0 -> 40 | 60@p0 -> - | mark 30@p0 -> - | mark 55@p0 -> 55",
    ),
    "future rows do not move time": (
        Source(BoundedDisorder(0), origins=ONE, future=100),
        "t50 40@p0 -> 40 | t50 151@p0 -> - | t50 150@p0 -> 150 | t50 mark 4000@p0 -> -",
    ),
    "negative times": (Source(BoundedDisorder(5), origins=ONE), "-10@p0 -> -15 | -3@p0 -> -8"),
    "lowest time": (Source(BoundedDisorder(5), origins=ONE), f"{-(2**63)}@p0 -> {-(2**63)} | 0@p0 -> -5"),
}


@pytest.mark.parametrize(("source", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_source_scenario(source: Source, script: str) -> None:
    source.run(script)


def test_e07_after_a_restart_the_watermark_goes_on_from_where_it_was() -> None:
    source = Source(BoundedDisorder(0), origins=ONE)
    source.run("10@p0 -> 10")
    source.watermarks = OriginWatermarks.restore(source.watermarks.snapshot(), {KEY: BoundedDisorder(0)}, now=0)
    source.run("9@p0 -> - | 10@p0 -> - | 11@p0 -> 11")


def test_e14_a_row_without_a_time_is_refused() -> None:
    source = Source(origins=ONE).watermarks
    with pytest.raises(FloodmarkError, match="not-int64"):
        source.event("p0", {KEY: None}, now=0)  # type: ignore[dict-item]


@pytest.mark.parametrize("timeout", [0, -1])
def test_f17_a_timeout_of_nothing_is_refused(timeout: int) -> None:
    with pytest.raises(FloodmarkError, match="invalid-option"):
        Idleness(timeout=timeout)


@pytest.mark.parametrize(("size", "offset"), [(-1, 0), (10, 10), (10, -1), (0, 1)])
def test_a_frame_that_makes_no_sense_is_refused(size: int, offset: int) -> None:
    with pytest.raises(FloodmarkError, match="invalid-option"):
        Frame(size, offset)
