"""Health and time of the service."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from floodmark.service.context import Context
from floodmark.service.messages import JsonResponse


class TimeView(BaseModel):
    """The store's time in microseconds since the epoch."""

    now: int


class HealthView(BaseModel):
    """Whether the service is up."""

    status: Literal["ok"]


ROUTES = APIRouter(tags=["service"])


@ROUTES.get("/health", response_model=HealthView)
async def show_health() -> JsonResponse:
    """Return that the service is up."""
    return JsonResponse({"status": "ok"})


@ROUTES.get("/time", response_model=TimeView)
async def show_time(context: Context) -> JsonResponse:
    """Return the store's time, which all users of the home share."""
    return JsonResponse({"now": await context.run(context.backend.now)})
