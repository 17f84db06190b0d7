"""Helpers of tests on Spark: feeds, shops, and in `drivers` the scripts that run as drivers of their own."""

import os
from pathlib import Path

_HERE = Path(__file__).parent
SCRIPTS = _HERE / "drivers"

# For the Python workers of every Spark that is started from here.
_PATHS = [str(_HERE / "preload"), str(_HERE.parents[1])]
_CURRENT = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in _PATHS]
os.environ["PYTHONPATH"] = os.pathsep.join([*_PATHS, *_CURRENT])
