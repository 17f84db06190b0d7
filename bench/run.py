"""Measures Floodmark on this machine and writes bench/RESULTS.md: `make bench`."""

import os
import platform
import sys
from pathlib import Path

import numpy

import floodmark
from bindings import measure_bindings
from bridge import measure_bridge
from figures import Figure
from measure_ingest import measure_ingest
from measure_kafka import measure_kafka
from measure_landing import measure_landing
from measure_sinks import measure_sinks
from progress import measure_coalescer, measure_tracker
from readers import measure_readers
from service import measure_service
from streams import measure_streams

RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> int:
    """Measure everything, print it, write it down; exit 1 if a goal was missed."""
    figures: list[Figure] = []
    measured = (
        # First, since a JVM takes jars only when it starts, and these need Spark's own connectors.
        measure_kafka,
        measure_sinks,
        measure_landing,
        measure_tracker,
        measure_coalescer,
        measure_streams,
        measure_readers,
        measure_service,
        measure_bindings,
        measure_bridge,
        measure_ingest,
    )
    for measure in measured:
        for figure in measure():
            print(figure.line(), flush=True)
            figures.append(figure)
    RESULTS.write_text(report(figures), encoding="utf-8")
    missed = [figure for figure in figures if figure.is_missed()]
    print(f"{len(figures)} figures, {len(missed)} below their goal; written to bench/{RESULTS.name}")
    return 1 if missed else 0


def report(figures: list[Figure]) -> str:
    """Return the results as a page."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{os.cpu_count()} cores ({platform.machine()}), {memory:.0f} GiB of memory, {platform.system()}"
    versions = f"Python {platform.python_version()}, numpy {numpy.__version__}"
    rows = [f"| {figure.name} | {figure.shown()} | {figure.goal_shown()} |" for figure in figures]
    return "\n".join(
        [
            "# Results",
            "",
            f"Floodmark {floodmark.__version__} on {machine}; {versions}.",
            "Written by `make bench`. Most figures are the best of several rounds in one run; those of the "
            "tracker, the coalescer and plans in time of one core, the others by the clock.",
            "",
            "| what | measured | goal |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
