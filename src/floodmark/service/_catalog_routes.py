"""Streams: listed, found, created, altered, scaled, sealed and deleted."""

from typing import Annotated

from fastapi import APIRouter, Query

from floodmark.errors import Conflict
from floodmark.service._desk import DeskOf, StreamId, StreamName, bad_request
from floodmark.service._forms import Done, NewStream, Scaling, SettingsForm, StreamsView, StreamView
from floodmark.service._settings_forms import changes_of, settings_of
from floodmark.service._statuses import Json
from floodmark.streams._catalog import StreamInfo
from floodmark.streams._layout import Layout
from floodmark.streams._stream_names import check_stream_name
from floodmark.streams.remote._forms import save_stream

ROUTES = APIRouter(tags=["streams"])


def _shown(stream: StreamInfo, status: int = 200) -> Json:
    return Json(_view(stream), status_code=status)


def _view(stream: StreamInfo) -> dict[str, object]:
    return {**save_stream(stream), "ddl": stream.settings.ddl}


@ROUTES.get("/streams", response_model=StreamsView)
async def list_streams(desk: DeskOf) -> Json:
    """Return the streams that the token is good for."""
    desk.allow_some("read")
    streams = await desk.run(desk.backend.catalog.all)
    return Json({"streams": [_view(stream) for stream in streams if desk.may_see(stream.name)]})


@ROUTES.post("/streams", response_model=StreamView, status_code=201)
async def create_stream(desk: DeskOf, form: NewStream) -> Json:
    """Create a stream."""
    desk.allow("admin", check_stream_name(form.name))
    settings = settings_of(form.settings)
    made = await desk.run(desk.backend.catalog.create, form.name, settings, form.segments, stream_id=form.id)
    return _shown(made, 201)


@ROUTES.get("/stream", response_model=StreamView)
async def find_stream(desk: DeskOf, name: Annotated[str, Query(examples=["shop/orders"])]) -> Json:
    """Return the stream of a name."""
    return _shown(await desk.find(name, "read"))


@ROUTES.get("/streams/{stream}", response_model=StreamView)
async def show_stream(desk: DeskOf, stream: StreamId, name: StreamName = None) -> Json:
    """Return what a stream is now."""
    info = await desk.stream(stream, name, "read")
    return _shown(await desk.run(desk.backend.catalog.refresh, info))


@ROUTES.patch("/streams/{stream}", response_model=StreamView)
async def alter_stream(desk: DeskOf, stream: StreamId, form: SettingsForm, name: StreamName = None) -> Json:
    """Change settings. What is not named stays as it is, and the schema stays in any case."""
    info = await desk.stream(stream, name, "admin")
    if form.model_fields_set & {"arrow_schema", "ddl"}:
        raise bad_request("The schema of a stream was to be changed.", "Create another stream.")
    return _shown(await desk.run(desk.backend.catalog.alter, info, changes_of(form)))


@ROUTES.delete("/streams/{stream}", response_model=Done)
async def delete_stream(desk: DeskOf, stream: StreamId, name: StreamName = None) -> Json:
    """Forget a stream, with its events and marks."""
    info = await desk.stream(stream, name, "admin")
    await desk.run(desk.backend.catalog.delete, info)
    return Json({})


@ROUTES.post("/streams/{stream}/scale", response_model=StreamView)
async def scale_stream(desk: DeskOf, stream: StreamId, form: Scaling, name: StreamName = None) -> Json:
    """Seal segments and put others in their place."""
    info = await desk.stream(stream, name, "admin")

    def change(layout: Layout) -> Layout:
        if form.epoch is not None and form.epoch != layout.epoch:
            raise Conflict(
                f"The stream {info.name!r} is in epoch {layout.epoch}, not {form.epoch}.",
                rule="A change is made of the layout that it was made for.",
                remedy="Read the layout again.",
                stream=info.name,
                epoch=layout.epoch,
            )
        return layout.replace(form.seal, [(low, high) for low, high in form.ranges])

    return _shown(await desk.run(desk.backend.log.scale, info, change))


@ROUTES.post("/streams/{stream}/seal", response_model=StreamView)
async def seal_stream(desk: DeskOf, stream: StreamId, name: StreamName = None) -> Json:
    """Let a stream take no more events."""
    info = await desk.stream(stream, name, "admin")
    return _shown(await desk.run(desk.backend.log.seal, info))
