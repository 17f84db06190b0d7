"""What idle writers mean for a watermark, how a log ends, and its pace."""

from collections.abc import Mapping

import pytest

from floodmark.streams.marks.watermark import WatermarkRules
from support.streams.mark_script import ONE, run

SCENARIOS: Mapping[str, tuple[int, str]] = {
    "idle is not waited for": (
        60,
        """note a 100 {0: 1}
        note b 100 {0: 2}
        look -> 100 100 {0: 2}
        idle b {0: 9}
        idle b
        note a 200 {0: 3}
        look -> 200 200 {0: 9} | a
        note b 200 {0: 10}
        b is alive
        note a 300 {0: 11}
        look -> -
        holds b until 60""",
    ),
    "idle ahead bounds from above only": (
        60,
        """note a 100 {0: 1}
        note b 500 {0: 2}
        idle b
        look -> 100 500 {0: 2} | a""",
    ),
    "idle and back behind is set aside": (
        60,
        """note a 100 {0: 1}
        note b 100 {0: 2}
        look -> 100 100 {0: 2}
        idle b
        note a 200 {0: 3}
        look -> 200 200 {0: 3}
        note b 150 {0: 4}
        note a 210 {0: 5}
        look -> 210 210 {0: 5} | a""",
    ),
    "all idle": (
        60,
        """note a 100 {0: 1}
        note b 150 {0: 2}
        look -> 100 150 {0: 2}
        idle b
        look -> -
        holds a until 60
        idle a
        look -> 150 150 {0: 2} | b
        look -> idle {0: 2}
        look -> -
        at 1000
        look -> -
        a is idle
        note a 151 {0: 3}
        look -> 151 151 {0: 3} | a
        idle a
        look -> idle {0: 3}
        close a
        look -> -
        close b
        look -> unknown {0: 3}
        look -> -""",
    ),
    # What was written since ended the idleness for whoever reads it; so it is said again behind that.
    "idle again after a few rows": (
        60,
        """note a 100 {0: 1}
        look -> 100 100 {0: 1}
        idle a
        look -> idle {0: 1}
        note a 100 {0: 1}
        look -> -
        idle a
        look -> -
        note a 100 {0: 5}
        idle a {0: 7}
        look -> idle {0: 7}
        look -> -""",
    ),
    "all idle, none with a time": (
        60,
        """open a
        idle a
        look -> idle {0: 0}
        look -> -
        close a
        look -> unknown {0: 0}""",
    ),
    "the rest has timed out": (
        60,
        """note a 100 {0: 1}
        note b 150 {0: 2}
        look -> 100 150 {0: 2}
        idle b
        at 59
        look -> -
        at 60
        look -> 150 150 {0: 2} | b""",
    ),
    "nobody was ever there": (60, "look -> -\n open a\n close a\n look -> -\n a is gone\n look -> -"),
    "closed twice, idle after closing": (
        60,
        "note a 1 {0: 1}\n close a\n close a\n idle a -> !writer-closed\n look -> 1 1 {0: 1}",
    ),
}


@pytest.mark.parametrize(("timeout", "script"), SCENARIOS.values(), ids=SCENARIOS)
def test_a_scenario(timeout: int, script: str) -> None:
    run(WatermarkRules(timeout=timeout), ONE, script)


PACED: Mapping[str, tuple[WatermarkRules, str]] = {
    "first delay": (
        WatermarkRules(timeout=60, first_delay=100),
        """open idler
        at 10
        note a 5 {0: 1}
        look -> -
        at 70
        look -> -
        holds  until 110
        note b 4 {0: 2}
        at 109
        look -> -
        at 110
        look -> 4 5 {0: 2} | a,b""",
    ),
    "rate floor": (
        WatermarkRules(timeout=60, rate_floor=10),
        """note a 5 {0: 1}
        look -> 5 5 {0: 1}
        note a 6 {0: 2}
        look -> -
        holds  until 10
        at 9
        note a 7 {0: 3}
        look -> -
        at 10
        look -> 7 7 {0: 3}
        idle a
        look -> -
        holds  until 20
        at 20
        look -> idle {0: 3}""",
    ),
    "a clock that was put back does not stop the stream": (
        WatermarkRules(timeout=60, rate_floor=10),
        "at 1000\n note a 5 {0: 1}\n look -> 5 5 {0: 1}\n at 500\n note a 6 {0: 2}\n look -> 6 6 {0: 2}",
    ),
    "held beyond the rate floor": (
        WatermarkRules(timeout=5, rate_floor=50),
        """note a 5 {0: 1}
        note b 5 {0: 1}
        look -> 5 5 {0: 1}
        note a 6 {0: 2}
        look -> -
        holds b until 50""",
    ),
    "forgotten": (
        WatermarkRules(timeout=10, forget_after=100),
        """note a 5 {0: 1}
        note b 5 {0: 9}
        look -> 5 5 {0: 9}
        at 50
        note a 6 {0: 2}
        look -> 6 6 {0: 9}
        b is set aside
        at 99
        note a 7 {0: 3}
        look -> 7 7 {0: 9}
        b is set aside
        at 100
        look -> -
        note a 8 {0: 4}
        look -> 8 8 {0: 9}
        b is gone""",
    ),
}


@pytest.mark.parametrize(("rules", "script"), PACED.values(), ids=PACED)
def test_a_scenario_of_pace(rules: WatermarkRules, script: str) -> None:
    run(rules, ONE, script)
