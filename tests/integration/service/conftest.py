"""The fixtures of this folder."""

from support.service.routes import shop  # noqa: F401 - pytest finds fixtures by their names
from support.service.service_tools import *  # noqa: F403
