"""What belongs to no stream: whether the service is up, and what time it is."""

from typing import Final

from fastapi import APIRouter

from floodmark.service._desk import DeskOf
from floodmark.service._forms import HealthView, TimeView
from floodmark.service._statuses import Json
from floodmark.streams.remote._requests import VERSION

ROUTES = APIRouter(tags=["service"])
HEALTH: Final = f"{VERSION}/health"
"""The one path that needs no token."""


@ROUTES.get("/health", response_model=HealthView)
async def show_health() -> Json:
    """Say that the service is up."""
    return Json({"status": "ok"})


@ROUTES.get("/time", response_model=TimeView)
async def show_time(desk: DeskOf) -> Json:
    """Return the time by the clock that all who use the home share."""
    return Json({"now": await desk.run(desk.backend.now)})
