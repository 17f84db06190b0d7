"""What belongs to no stream: whether the service is up, and what time it is."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from floodmark.service.context import Context
from floodmark.service.messages import JsonResponse


class TimeView(BaseModel):
    """The time by the clock of the store, in microseconds since the epoch."""

    now: int


class HealthView(BaseModel):
    """Whether the service is up."""

    status: Literal["ok"]


ROUTES = APIRouter(tags=["service"])


@ROUTES.get("/health", response_model=HealthView)
async def show_health() -> JsonResponse:
    """Say that the service is up."""
    return JsonResponse({"status": "ok"})


@ROUTES.get("/time", response_model=TimeView)
async def show_time(context: Context) -> JsonResponse:
    """Return the time by the clock that all who use the home share."""
    return JsonResponse({"now": await context.run(context.backend.now)})
