"""The fixtures of this folder."""

from support.service.service_tools import *  # noqa: F403 - pytest finds fixtures by their names
