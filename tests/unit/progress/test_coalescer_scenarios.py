"""The merging scenarios of the model systems, row by row, under Floodmark's rulings.

Where a ruling changes what the model system did, the row says so.
"""

import pytest

from floodmark.progress import Coalescer, NotRising, Revived
from support.merging_script import run

MAX = 2**63 - 1

ONE_KEY = {
    "A01": "q0 1 -> - | q1 2 -> 1 | q0 3 -> 2 | q1 4 -> 3",
    "A02": "q0 10 -> - | q1 12 -> 10 | q0 11 -> 11 | q1 13 -> - | q0 14 -> 13",
    "A03": "q0 idle -> - | q1 11 -> 11 | q0 event | q1 12 -> - | q0 13 -> 12",
    "A04": "q0 idle -> - | q1 11 -> 11 | q0 11 -> - | q1 12 -> - | q0 13 -> 12",
    "A05": "q0 100 -> - | q1 idle -> 100",
    "A06": "q0 idle -> - | q1 100 -> 100",
    "A07": "q0 event | q1 idle -> -",
    "A08": "q0 idle -> - | q1 idle -> IDLE | q1 idle -> -",
    "A09": "q0 100 -> - | q1 done -> 100",
    "A10": "q0 done -> - | q1 100 -> 100",
    # What remains is idle as soon as the other has finished: "all idle" does not depend on which came first.
    "A11": "q0 idle -> - | q1 done -> IDLE | q0 10 -> 10",
    "A12": "q0 done | q1 idle -> IDLE | q1 10 -> 10",
    "A13": "q0 idle -> - | q0 idle -> -",
    "A14": "q0 done -> - | q1 done -> -",
    "A15": "q0 done | q0 done -> !input-finished",
    "A16a": "q0 done | q0 0 -> !input-finished",
    "A16b": "q0 done | q0 idle -> !input-finished",
    "A16c": "q0 done | q0 event -> !input-finished",
    "A17a": "q0 10 | q0 9 -> !watermark-not-rising | q0 11 -> -",
    "A17b": "q0 10 | q0 10 -> !watermark-not-rising",
    "H11": "q0 5 | q1 9 -> 5 | q0 idle -> 9 | q0 7 -> - | q1 20 -> - | q0 12 -> 12",
    "H17": "q0 5 | q1 9 -> 5 | q1 idle -> - | q0 idle -> 9, IDLE",
    "H22": "q0 5 | q1 9 -> 5 | q1 idle -> - | q0 done -> 9, IDLE",
    "H22-once": "q0 idle | q1 idle -> IDLE | q0 done -> - | q1 idle -> -",
    "H23": "q0 100 | q1 50 -> 50 | q0 done -> - | q1 done -> -",
    "D2": "q0 idle | q0 done | q1 5 -> 5",
    "D5": "q0 idle | q1 idle -> IDLE | q0 idle -> - | q1 idle -> -",
    "D7": f"q0 {MAX} -> !reserved-time | q1 {MAX} -> !reserved-time | q0 5 | q1 6 -> 5",
}

MANY_KEYS = {
    "B01": "q0 k0=0 -> - | q1 idle -> 0 | q0 event | q0 k0=1 -> 1",
    "B02": "q0 idle -> - | q1 idle -> IDLE",
    "B04": "q0 idle -> - | q1 k42=10 -> k42=10",
    "B05": "q0 42 -> - | q0 idle -> - | q1 idle -> 42, IDLE",
    "B06": "q0 done -> - | q1 idle -> IDLE",
    "B07": "q0 idle -> - | q0 event | q1 idle -> -",
    "B08": (
        "q0 10 -> - | q1 k1=10 -> - | q0 20 -> - | q1 k1=20 -> - | q1 idle -> 20 | q1 event | q0 30 -> - |q1 done -> 30"
    ),
    # An input that speaks on one key is active on all.
    "D1": "q0 5 | q1 5 -> 5 | q0 idle -> - | q0 k1=7 -> - | q1 9 -> - | q1 idle -> k1=7 | q0 8 -> 8",
    "keys-are-apart": "q0 k1=100 | q1 k1=90 -> k1=90 | q0 5 | q1 6 -> 5 | q0 k1=101 -> - | q1 k1=95 -> k1=95",
    "flush-each-key": "q0 5 | q1 9 -> 5 | q0 k1=4 | q1 k1=3 -> k1=3 | q0 idle -> 9 | q1 idle -> k1=4, IDLE",
    "late-key-inherits": "q0 done | q1 k7=3 -> k7=3 | q1 idle -> IDLE | q1 k8=1 -> k8=1",
}

MEMBERS = {
    "add-holds": "q0 5 | q1 6 -> 5 | q2 add | q0 7 -> - | q1 8 -> - | q2 6 -> 6",
    "add-below": "q0 5 | q1 6 -> 5 | q2 add | q2 1 -> - | q0 9 -> - | q1 9 -> - | q2 7 -> 7",
    "add-ends-idle": "q0 idle | q1 idle -> IDLE | q2 add | q2 idle -> IDLE",
    "remove-releases": "q0 5 | q1 remove -> 5",
    "remove-lowest": "q0 10 | q1 11 -> 10 | q0 remove -> 11",
    "remove-highest": "q0 10 | q1 11 -> 10 | q1 remove -> -",
    "remove-to-idle": "q0 5 | q1 9 -> 5 | q0 idle -> 9 | q1 remove -> IDLE",
    "remove-all": "q0 remove -> - | q1 remove -> - | q2 add | q2 3 -> 3",
    "remove-finished": "q0 5 | q1 done -> 5 | q1 remove -> - | q0 6 -> 6",
    "name-comes-back": "q0 5 | q1 6 -> 5 | q1 remove -> - | q1 add | q0 9 -> - | q1 7 -> 7",
    "revive-active": "q0 5 | q0 revive -> - | q1 6 -> 5",
    "revive-idle": "q0 5 | q1 9 -> 5 | q0 idle -> 9 | q0 revive -> - | q1 20 -> - | q0 12 -> 12",
    "revive-all-idle": "q0 idle | q1 idle -> IDLE | q0 revive -> - | q0 idle -> IDLE",
    "revive-finished": "q0 5 | q1 done -> 5 | q1 revive -> - | q0 6 -> - | q1 7 -> 6",
    "revive-finished-then-idle": "q0 5 | q1 done -> 5 | q1 revive -> - | q1 idle -> - | q0 idle -> IDLE",
    "revive-last-finished": "q0 done | q1 done -> - | q1 revive -> - | q1 3 -> 3 | q1 done -> -",
    "revive-unknown": "q9 revive -> !unknown-input | q0 remove | q0 revive -> !unknown-input",
    "unknown": "q9 5 -> !unknown-input | q9 idle -> !unknown-input | q9 remove -> !unknown-input",
    "twice": "q0 add -> !duplicate-name | q0 done | q0 add -> !duplicate-name",
}


@pytest.mark.parametrize(
    "script", [*ONE_KEY.values(), *MANY_KEYS.values(), *MEMBERS.values()], ids=[*ONE_KEY, *MANY_KEYS, *MEMBERS]
)
def test_two_inputs_that_hold_and_fail(script: str) -> None:
    run(Coalescer(["q0", "q1"]), script)


ONE_INPUT = {
    "A20": "q0 idle -> IDLE | q0 10 -> 10 | q0 11 -> 11 | q0 idle -> IDLE | q0 12 -> 12 | q0 done -> -",
    "F01": "q0 25 -> 25 | q0 18 -> - | q0 42 -> 42 | q0 idle -> IDLE | q0 idle -> - | q0 event -> -",
    # A watermark revives its input; the model system ignored it until the input was declared active.
    "F02": "q0 25 -> 25 | q0 idle -> IDLE | q0 50 -> 50 | q0 event -> - | q0 50 -> -",
}


@pytest.mark.parametrize("script", ONE_INPUT.values(), ids=ONE_INPUT)
def test_one_input_that_ignores(script: str) -> None:
    run(Coalescer(["q0"], not_rising="ignore"), script)


THREE_INPUTS = {
    "F03": "a 0 | b 0 -> - | c 0 -> 0 | a 12 | c 8 | c 10 -> - | b 15 -> 10 | c 17 -> 12 | a 20 -> 15",
    "F04": "a 25 | b 10 | c 17 -> 10 | a 12 -> - | b 8 -> - | c 15 -> -",
    "F05": "a 15 | b 10 -> - | c idle -> 10 | b 18 -> 15 | a 20 -> 18",
    "F06": "a 25 | b 10 | c 17 -> 10 | b idle -> 17 | c idle -> 25",
    "F07": "a 10 | b 5 | c 3 -> 3 | a idle -> - | b idle -> - | c idle -> 10, IDLE",
    "F09": "a 10 | b 7 -> - | c idle -> 7 | c event | a idle -> - | b idle -> -",
    "F10": "c done | a 7 | b 10 -> 7 | a idle -> 10 | a event | a 9 -> - | a idle -> -",
}


@pytest.mark.parametrize("revived", ["hold", "exclude"])
@pytest.mark.parametrize("script", THREE_INPUTS.values(), ids=THREE_INPUTS)
def test_three_inputs_whatever_becomes_of_laggards(script: str, revived: Revived) -> None:
    run(Coalescer(["a", "b", "c"], revived=revived, not_rising="ignore"), script)


LAGGARDS: dict[str, tuple[Revived, str]] = {
    "F12": ("hold", "a 100 | b 90 -> 90 | a done -> - | b idle -> 100, IDLE"),
    "F13-hold": ("hold", "a 100 | b 100 -> 100 | a idle -> - | b 200 -> 200 | a 150 -> - | b 210 -> - | a 205 -> 205"),
    "F13-exclude": (
        "exclude",
        "a 100 | b 100 -> 100 | a idle -> - | b 200 -> 200 | a 150 -> - | b 210 -> 210 | a 205 -> - | b 220 -> 220 |"
        "a 220 -> - | b 230 -> - | a 225 -> 225",
    ),
    "exclude-silent": ("exclude", "a idle | b 10 -> 10 | a event | b 11 -> 11 | a 11 -> - | b 12 -> - | a 12 -> 12"),
    "exclude-alone": ("exclude", "a 5 | b 9 -> 5 | a idle -> 9 | a event | b idle -> - | a 8 -> - | a 10 -> 10"),
    "exclude-then-another-by-that-name": (
        "exclude",
        "a 5 | b 9 -> 5 | a idle -> 9 | a event | a remove -> - | a add | b 10 -> - | a 9 -> - | a 10 -> 10",
    ),
    "exclude-nothing-left-yet": ("exclude", "a idle | a event | b 10 -> - | a 3 -> 3"),
    "exclude-per-key": (
        "exclude",
        "a 5 | b 9 -> 5 | a k1=1 | b k1=2 -> k1=1 | a idle -> 9, k1=2 | a k1=3 -> - | b k1=4 -> k1=3 | b 10 -> 10",
    ),
    # An input that comes back and does not lag may be the only one that counts.
    "exclude-event-releases": (
        "exclude",
        "c add | a 20 | b 10 | c 12 -> 10 | a idle -> - | b idle -> 12 | b event -> - | c idle -> - | a event -> 20",
    ),
    "exclude-other-key-releases": (
        "exclude",
        "c add | a 20 | b 10 | c 12 -> 10 | a idle -> - | b idle -> 12 | b event -> - | c idle -> - | a k1=1 -> 20",
    ),
    "exclude-own-key-releases-once": (
        "exclude",
        "c add | a 20 | b 10 | c 12 -> 10 | a idle -> - | b idle -> 12 | b event -> - | c idle -> - | a 25 -> 25",
    ),
    "exclude-revived-without-a-row": (
        "exclude",
        "a 5 | b 9 -> 5 | a idle -> 9 | a revive | b 10 -> 10 | a 10 -> - | b 11",
    ),
    "exclude-revived-finished": ("exclude", "a 5 | b 9 -> 5 | a done -> 9 | a revive | b 10 -> 10 | a 10 -> - | b 11"),
    "own-policy": ("hold", "c add:exclude | c idle | a 10 | b 10 -> 10 | c event | a 11 | b 11 -> 11"),
}


@pytest.mark.parametrize(("revived", "script"), LAGGARDS.values(), ids=LAGGARDS)
def test_a_revived_laggard(revived: Revived, script: str) -> None:
    run(Coalescer(["a", "b"], revived=revived), script)


NOT_RISING: dict[str, tuple[NotRising, str]] = {
    "fail": ("fail", "a 10 | b idle -> 10 | b 3 -> - | b idle -> - | b 3 -> !watermark-not-rising | a 11 -> 11"),
    "ignore": ("ignore", "a 10 | b idle -> 10 | b 3 -> - | b idle -> - | b 3 -> - | a 11 -> -"),
}


@pytest.mark.parametrize(("not_rising", "script"), NOT_RISING.values(), ids=NOT_RISING)
def test_what_does_not_rise_revives_only_where_it_is_ignored(not_rising: NotRising, script: str) -> None:
    run(Coalescer(["a", "b"], not_rising=not_rising), script)


def test_a01_tells_the_highest_seen_and_the_last_that_left() -> None:
    merged = Coalescer(["q0", "q1"])
    run(merged, ONE_KEY["A01"])
    assert (merged.top("k0"), merged.current("k0")) == (4, 3)


def test_no_input_is_not_idle() -> None:
    merged = Coalescer()
    assert not merged.is_idle
    assert not merged.is_finished
