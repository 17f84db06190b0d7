"""One measured figure, its goal, and how to take it."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """A number with a unit; `at_least` or `at_most` is the goal, if it has one."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    def is_missed(self) -> bool:
        """Return whether the goal was not reached."""
        return (self.at_least is not None and self.value < self.at_least) or (
            self.at_most is not None and self.value > self.at_most
        )

    def shown(self) -> str:
        """Return the value with its unit."""
        return f"{self.value:.2f} {self.unit}"

    def goal_shown(self) -> str:
        """Return the goal, and whether it was missed."""
        if self.at_least is not None:
            goal = f"at least {self.at_least:g} {self.unit}"
        elif self.at_most is not None:
            goal = f"at most {self.at_most:g} {self.unit}"
        else:
            return ""
        return f"{goal}: **missed**" if self.is_missed() else goal

    def line(self) -> str:
        """Return one line for the terminal."""
        return f"{self.name:<62} {self.shown():>14}   {self.goal_shown().replace('**', '')}"


def best_seconds(work: Callable[[], object], rounds: int = 20) -> float:
    """Return the shortest time that `work` took, so that what else the machine does disturbs least."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)
