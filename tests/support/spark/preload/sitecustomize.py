"""Spares Spark's Python processes the second that each of them needs to import the same modules.

Python imports this module at its start, since its directory is on PYTHONPATH (see support/spark/__init__.py).
"""

import os
import sys

if "pyspark.daemon" in sys.orig_argv:
    # A worker is a fork of its daemon.
    from support.spark.warm_workers import preload

    preload()
elif "WARM_WORKERS" in os.environ and "pyspark.sql.streaming.python_streaming_source_runner" in sys.orig_argv:
    # Spark starts a process for each source of a streaming query: let it be a fork, too.
    from support.spark.warm_workers import run_in_fork

    run_in_fork(os.environ["WARM_WORKERS"])
