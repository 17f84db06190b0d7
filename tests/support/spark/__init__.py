"""Helpers of tests on Spark: feeds, shops, and the scripts that run as drivers of their own."""

import os
from pathlib import Path

SCRIPTS = Path(__file__).parent

# For the Python workers of every Spark that is started from here.
_PATHS = [str(SCRIPTS / "preload"), str(SCRIPTS.parents[1])]
_CURRENT = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in _PATHS]
os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, *_CURRENT])
