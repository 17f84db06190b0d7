"""The scenarios of marks that the model system's own tests hold, row by row, under Floodmark's rulings.

Where a ruling changes what the model system did, the row says so.
"""

from collections.abc import Mapping, Sequence

import pytest

from floodmark.streams.marks.watermark import Emit, Wait, WatermarkRules
from support.streams.mark_script import ONE, TWO, run
from support.streams.played_stream import Epoch, PlayedStream, layout_of

THREE_TO_TWO: Sequence[Epoch] = [
    {0: (0, 0.333), 1: (0.333, 0.667), 2: (0.667, 1)},
    {3: (0, 0.5), 4: (0.5, 1)},
]
MIN = -(2**63)

SCENARIOS: Mapping[str, tuple[int, Sequence[Epoch], str]] = {
    "s-01": (
        0,
        TWO,
        """note w1 1 {0: 0, 1: 0}
        note w1 2 {0: 1, 1: 1}
        note w1 3 {0: 1, 1: 1}
        note w1 3 {0: 2, 1: 2}
        note w1 2 {0: 2, 1: 2} -> time went back
        note w1 4 {0: 2, 1: 1} -> position went back
        w1 has {0: 2, 1: 2}
        close w1
        close stranger -> !unknown-writer""",
    ),
    "s-03": (
        0,
        ONE,
        """w1 is gone
        note w1 0 {0: 1}
        note w1 1 {0: 2}
        w1 is alive
        close w1
        w1 is closed
        note w1 2 {0: 2}
        w1 is alive""",
    ),
    "s-04": (0, [{0: (0, 1)}, {1: (0, 1)}], "note w 5 {0: 10}\n note w 5 {1: 0}\n w has {1: 0}"),
    # Of the transactions committed together, the last mark stands; to mark again changes nothing.
    "s-05, s-06": (
        0,
        ONE,
        """note w1 1 {0: 1}
        note w1 2 {0: 2}
        note w1 5 {0: 3}
        note w1 5 {0: 3}
        note w1 1 {0: 1} -> time went back
        w1 has {0: 3}
        look -> 5 5 {0: 3}""",
    ),
    "s-08 to s-13": (
        10000,
        THREE_TO_TWO,
        """note w1 100 {0: 100, 1: 200}
        note w2 101 {1: 100, 2: 200}
        note w3 102 {2: 100, 0: 200}
        look -> 100 102 {0: 200, 1: 200, 2: 200} | w1,w2,w3
        at 1
        note w1 200 {1: 300}
        note w2 201 {1: 100, 2: 300}
        note w3 202 {2: 300}
        look -> 200 202 {0: 200, 1: 300, 2: 300}
        at 2
        note w1 302 {0: 300, 1: 400}
        note w2 301 {1: 100, 2: 400}
        note w3 300 {3: 100}
        look -> 300 302 {3: 100, 4: 0}
        at 3
        note w1 400 {0: 400, 1: 400}
        note w2 401 {1: 100, 2: 400}
        look -> -
        holds w3 until 10002
        w3 is alive
        close w3
        w3 is closed
        at 4
        look -> 400 401 {3: 100, 4: 0} | w1,w2
        w3 is gone
        at 5
        note w1 500 {0: 500, 1: 500}
        note w2 501 {1: 100, 2: 500}
        note w3 502 {4: 500}
        look -> 500 502 {3: 100, 4: 500} | w1,w2,w3""",
    ),
    # By ruling the end is an unknown entry; its cut has what the silent ones have written.
    "s-19": (
        0,
        ONE,
        """note w1 100 {0: 10}
        note w2 102 {0: 20}
        look -> 100 102 {0: 20}
        at 1
        look -> 102 102 {0: 20} | w2
        note w1 101 {0: 30}
        at 2
        look -> unknown {0: 30}
        look -> -
        holds  until None""",
    ),
    "s-20": (  # the same ruling
        0,
        ONE,
        """note w0 50 {0: 1}
        note w1 80 {0: 2}
        note w2 150 {0: 3}
        look -> 50 150 {0: 3}
        at 1
        look -> 80 150 {0: 3}
        at 2
        look -> 150 150 {0: 3}
        note w1 90 {0: 4}
        at 3
        look -> unknown {0: 4}""",
    ),
    "s-21": (0, ONE, "note a 1 {0: 10}\n note b 2 {0: 20}\n look -> 1 2 {0: 20}"),
    # By ruling a commit without a time records no mark, so nothing holds the first watermark.
    "s-25": (0, ONE, "note w 10 {0: 9}\n look -> 10 10 {0: 9}"),
    "s-25 with the least time as a time": (
        0,
        ONE,
        f"""note txn {MIN} {{0: 5}}
        note w 10 {{0: 9}}
        look -> {MIN} 10 {{0: 9}}
        at 1
        look -> 10 10 {{0: 9}} | w""",
    ),
    "bad positions": (
        60,
        TWO,
        """note a 1 {0: -1} -> !position-invalid
        note a 1 {2: 5} -> !foreign-segment
        note a 1 {} -> accepted
        look -> 1 1 {0: 0, 1: 0}""",
    ),
    "what is not named keeps its place": (
        60,
        TWO,
        """note a 1 {0: 10, 1: 20}
        note a 2 {1: 30}
        a has {0: 10, 1: 30}
        look -> 2 2 {0: 10, 1: 30}
        note a 3 {0: 9} -> position went back""",
    ),
    "bad times": (
        60,
        ONE,
        f"note a {2**63 - 1} {{0: 1}} -> !reserved-time\n note a {2**63} {{0: 1}} -> !not-int64\n note a -5 {{0: 1}}",
    ),
}


@pytest.mark.parametrize(("timeout", "epochs", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_a_scenario(timeout: int, epochs: Sequence[Epoch], script: str) -> None:
    run(WatermarkRules(timeout=timeout), epochs, script)


@pytest.mark.parametrize("lower", range(1, 5))
@pytest.mark.parametrize("time", range(7))
def test_s07_who_takes_part_after_a_watermark(lower: int, time: int) -> None:
    # Above it a writer counts, at it it is waited for; the model system waited for one below it too.
    stream = PlayedStream(layout_of(ONE), WatermarkRules(timeout=1000))
    stream.note("first", lower, {0: 1})
    stream.cycle()
    stream.close("first")
    stream.note("w", time, {0: 1})
    decision = stream.cycle()
    assert isinstance(decision, Emit) == (time > lower)
    if isinstance(decision, Wait):
        assert decision.holders == (("w",) if time == lower else ())


@pytest.mark.parametrize("known", [False, True], ids=["new", "timed out before"])
def test_s27_a_laggard_does_not_hold_the_stream_again_and_again(known: bool) -> None:
    # The model system emitted 104, 108 and 112 only; by ruling there is an entry in every cycle.
    stream = PlayedStream(layout_of(ONE), WatermarkRules(timeout=25))
    if known:
        stream.note("L", 10, {0: 1})
        stream.cycle(0)
    stream.now = 100
    stream.note("A", 100, {0: 2})
    stream.cycle(100)
    for k in range(1, 13):
        stream.now = 100 + 10 * k
        stream.note("A", 100 + k, {0: 10 * k})
        stream.note("L", 10 + k, {0: 10 * k + 5})
        stream.cycle()
    assert stream.lowers[-12:] == list(range(101, 113))
    assert stream.entries[-1].cut == {0: 125}
