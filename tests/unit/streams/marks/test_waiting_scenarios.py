"""Whom a watermark waits for, and for how long: closed, silent and late writers."""

from collections.abc import Mapping

import pytest

from floodmark.streams.marks.watermark import WatermarkRules
from support.streams.mark_script import ONE, run

SCENARIOS: Mapping[str, tuple[int, str]] = {
    # A closed writer that is ahead counts, with time and position, until the watermark has come to its time: once.
    "closed ahead": (
        10000,
        """note a 10 {0: 1}
        note b 1000 {0: 9}
        look -> 10 1000 {0: 9} | a,b
        at 1
        note a 20 {0: 2}
        look -> 20 1000 {0: 9} | a,b
        close b {0: 12}
        at 2
        note a 2000 {0: 11}
        look -> 1000 2000 {0: 12} | a,b
        b is gone
        look -> 2000 2000 {0: 12} | a""",
    ),
    "closed ahead is the least once": (
        10000,
        """note a 10 {0: 1}
        look -> 10 10 {0: 1}
        note b 1000 {0: 9}
        close b
        note a 20 {0: 2}
        look -> 20 1000 {0: 9} | a,b
        b is closed
        note a 2000 {0: 11}
        look -> 1000 2000 {0: 11} | a,b
        b is gone
        look -> 2000 2000 {0: 11} | a""",
    ),
    "all close, each at its own time": (
        10000,
        """note a 10 {0: 1}
        note b 30 {0: 2}
        note c 20 {0: 3}
        close a
        close b
        close c
        look -> 10 30 {0: 3} | a,b,c
        look -> 20 30 {0: 3} | b,c
        look -> 30 30 {0: 3} | b
        look -> unknown {0: 3}""",
    ),
    "closed ahead and alone": (
        10000,
        """note a 10 {0: 1}
        close a
        look -> 10 10 {0: 1} | a
        a is gone
        look -> unknown {0: 1}
        look -> -
        note b 5 {0: 3}
        look -> -
        b is set aside
        note b 11 {0: 4}
        look -> 11 11 {0: 4}""",
    ),
    "closed where the cut is and not ahead is gone at once": (
        10000,
        """note a 10 {0: 1}
        note b 10 {0: 2}
        look -> 10 10 {0: 2}
        close b
        look -> -
        b is gone""",
    ),
    "closed and not ahead is gone at once": (
        10000,
        """note a 10 {0: 1}
        note b 10 {0: 2}
        note c 10 {0: 2}
        look -> 10 10 {0: 2}
        close a
        look -> -
        a is gone
        close b {0: 7}
        look -> -
        b is closed
        note c 11 {0: 3}
        look -> 11 11 {0: 7} | c
        b is gone""",
    ),
    "closed and opened again goes on": (
        10000,
        """note a 10 {0: 1}
        close a
        open a
        a is alive
        note a 9 {0: 1} -> time went back
        look -> 10 10 {0: 1}
        look -> -
        holds a until 10000""",
    ),
    # A far one neither blocks nor times out; its time is the least when the others have passed it.
    "far ahead": (
        10,
        """note far 1000 {0: 5}
        note a 1 {0: 1}
        look -> 1 1000 {0: 5}
        at 500
        note a 2 {0: 6}
        look -> 2 1000 {0: 6} | a,far
        note a 1001 {0: 7}
        look -> 1000 1001 {0: 7} | a,far
        look -> 1001 1001 {0: 7} | a
        far is set aside""",
    ),
    "not ahead blocks until its timeout": (
        60,
        """note a 10 {0: 1}
        note b 10 {0: 2}
        look -> 10 10 {0: 2}
        at 30
        note a 20 {0: 3}
        look -> -
        holds b until 60
        at 59
        look -> -
        at 60
        look -> 20 20 {0: 3} | a
        b is set aside""",
    ),
    "the timeout counts from the last accepted mark": (
        60,
        """note a 10 {0: 1}
        note b 10 {0: 2}
        look -> 10 10 {0: 2}
        at 20
        note b 10 {0: 2}
        at 30
        note b 9 {0: 3} -> time went back
        note b 11 {0: 1} -> position went back
        note a 20 {0: 3}
        look -> -
        holds b until 80
        at 79
        look -> -
        at 80
        look -> 20 20 {0: 3}""",
    ),
    # It may go on speaking: with a living writer ahead nobody is waited for longer than one timeout.
    "patience ends": (
        60,
        """note a 10 {0: 1}
        note b 10 {0: 2}
        look -> 10 10 {0: 2}
        at 30
        note a 20 {0: 3}
        at 50
        note b 10 {0: 4}
        note a 21 {0: 5}
        look -> -
        holds b until 90
        at 89
        look -> -
        at 90
        look -> 21 21 {0: 5} | a
        b is set aside
        note b 21 {0: 6}
        note a 22 {0: 7}
        look -> 22 22 {0: 7} | a
        note b 23 {0: 8}
        note a 24 {0: 9}
        look -> 23 24 {0: 9} | a,b
        b is alive""",
    ),
    "patience counts from the entry for those ahead already": (
        60,
        """note a 20 {0: 1}
        note b 10 {0: 2}
        at 40
        look -> 10 20 {0: 2}
        at 50
        note b 10 {0: 2}
        look -> -
        holds b until 100""",
    ),
    "patience is for the living": (
        60,
        """note a 20 {0: 1}
        note b 10 {0: 2}
        look -> 10 20 {0: 2}
        close a
        at 50
        note b 10 {0: 2}
        at 100
        look -> -
        holds b until 110
        at 110
        look -> 20 20 {0: 2} | a
        look -> unknown {0: 2}""",
    ),
    "a first mark behind is set aside at once": (
        60,
        """note a 100 {0: 1}
        look -> 100 100 {0: 1}
        note new 50 {0: 9}
        note a 101 {0: 2}
        look -> 101 101 {0: 9} | a
        new is set aside
        note new 101 {0: 12}
        note a 102 {0: 13}
        look -> 102 102 {0: 13} | a
        note new 103 {0: 14}
        look -> -
        holds a until 60
        note a 104 {0: 15}
        look -> 103 104 {0: 15} | a,new
        new is alive""",
    ),
    "a first mark behind is remembered though nobody looked": (
        60,
        """note a 100 {0: 1}
        look -> 100 100 {0: 1}
        note new 50 {0: 9}
        note new 100 {0: 10}
        note a 101 {0: 11}
        look -> 101 101 {0: 11} | a""",
    ),
    "a first mark at the watermark is waited for": (
        60,
        """note a 100 {0: 1}
        look -> 100 100 {0: 1}
        note new 100 {0: 9}
        note a 101 {0: 2}
        look -> -
        holds new until 60
        note new 105 {0: 10}
        look -> 101 105 {0: 10} | a,new""",
    ),
    "a writer that is open and silent is waited for": (
        60,
        """note a 100 {0: 1}
        open b
        look -> -
        holds b until 60
        at 30
        open c
        note b 50 {0: 2}
        look -> -
        holds c until 60
        at 60
        look -> 50 100 {0: 2} | a,b
        c is set aside
        at 90
        note c 60 {0: 3}
        note b 70 {0: 4}
        look -> 60 100 {0: 4} | a,b,c""",
    ),
    "timed out and back behind": (
        60,
        """note a 100 {0: 1}
        note b 100 {0: 2}
        look -> 100 100 {0: 2}
        at 60
        note a 200 {0: 3}
        look -> 200 200 {0: 3}
        b is set aside
        at 70
        note b 150 {0: 4}
        note a 210 {0: 5}
        look -> 210 210 {0: 5}
        note b 210 {0: 6}
        note a 220 {0: 7}
        look -> 220 220 {0: 7}
        note b 230 {0: 8}
        note a 240 {0: 9}
        look -> 230 240 {0: 9} | a,b""",
    ),
    "only those aside are left": (
        60,
        """note a 100 {0: 1}
        look -> 100 100 {0: 1}
        note b 50 {0: 2}
        at 30
        look -> -
        holds a until 60
        close a
        look -> -
        holds  until 60
        note b 60 {0: 3}
        at 89
        look -> -
        at 90
        look -> unknown {0: 3}
        note b 70 {0: 4}
        look -> -
        note b 101 {0: 5}
        look -> 101 101 {0: 5}""",
    ),
}


@pytest.mark.parametrize(("timeout", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_a_scenario(timeout: int, script: str) -> None:
    run(WatermarkRules(timeout=timeout), ONE, script)
