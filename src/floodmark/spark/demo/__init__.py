"""The same orders through plain Spark and through Floodmark, in three cases that hurt.

Run it with `python -m floodmark.spark.demo`. It ends with 1 if Floodmark lost an order or miscounted a window.

A partition lags, one of two streams goes quiet, one row comes from the far future. In each case both queries read the
same files, one file a micro-batch, allow for a minute of disorder, and count orders per minute with Spark's own
windows. They differ only in where the watermark comes from.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from floodmark.spark._session import Setting, session
from floodmark.spark.demo._cases import Case, all_cases
from floodmark.spark.demo._outcome import Comparison, Outcome
from floodmark.spark.demo._report import Display, console_for_people, report
from floodmark.spark.demo._run import compare

__all__ = ["Case", "Comparison", "Outcome", "all_cases", "compare", "main", "report"]

_CONF: Final[Mapping[str, Setting]] = {
    # A run this short ends before the optimizing compiler has paid for itself.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # Thirty windows do not need a second store.
    "spark.sql.shuffle.partitions": 1,
}


def main() -> int:
    """Run the cases, print what came out, and return the exit code."""
    began = time.monotonic()
    console = console_for_people()
    console.print("Starting Spark ...")
    # Spark tells the end of queries late, and their home must still be there.
    with tempfile.TemporaryDirectory(prefix="floodmark-demo-") as directory:
        spark = session("floodmark-demo", conf=_CONF)
        try:
            comparisons = []
            with Display(console) as display:
                for number, case in enumerate(all_cases(time.time_ns() // 1000)):
                    display.begin(case)
                    comparisons.append(compare(spark, case, Path(directory) / str(number), display.watch))
        finally:
            spark.stop()
    report(console, comparisons)
    console.print(f"\nAll of it took {time.monotonic() - began:.0f} seconds.")
    return 0 if all(comparison.floodmark.is_right for comparison in comparisons) else 1
