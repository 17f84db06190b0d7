"""The fixtures of this folder."""

from support.streams.stream_fixtures import *  # noqa: F403 - pytest finds fixtures by their names
