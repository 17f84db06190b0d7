"""Spares the Python processes of the tests' Spark the second that each of them needs to import the same modules.

Python imports this module at its start, since its directory is on PYTHONPATH (see support/spark/__init__.py). It does
nothing for drivers that tests start in processes of their own.
"""

import os
import sys

if "WARM_WORKERS" in os.environ:
    if sys.orig_argv[-2:] == ["pyspark.daemon", "pyspark.worker"]:
        # A worker is a fork of its daemon.
        from support.spark.warm_workers import preload

        preload()
    elif sys.orig_argv[-1] == "pyspark.sql.streaming.python_streaming_source_runner":
        # Spark starts a process for each source of a streaming query: let it be a fork, too.
        from support.spark.warm_workers import run_in_fork

        run_in_fork(os.environ["WARM_WORKERS"])
