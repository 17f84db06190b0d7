"""The fixtures of this folder: one Spark for all of its tests."""

from support.spark.fixtures import *  # noqa: F403 - pytest finds fixtures by their names
