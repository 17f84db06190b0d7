"""Streams: list, find, create, alter, scale, seal, delete."""

import base64
import binascii
from datetime import timedelta
from typing import Annotated, Any, Final, TypeVar

import pyarrow as pa
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from floodmark.errors import Conflict, RequestInvalid, SchemaInvalid
from floodmark.service.context import Context, StreamId, StreamName
from floodmark.service.forms import FormRoute, needs
from floodmark.service.messages import Count, DoneView, FailFast, Form, Int64, JsonResponse, Micros, Name
from floodmark.streams.definition import DEFAULT_KEY, StreamInfo, StreamSettings, check_stream_name, make_settings
from floodmark.streams.layout.layout import Layout
from floodmark.streams.remote.wire import save_stream

MAX_SEGMENTS = 10_000

T = TypeVar("T")
Pair = Annotated[list[T], Field(min_length=2, max_length=2, fail_fast=True)]


class SettingsForm(Form):
    """Settings of a stream. Durations are in microseconds."""

    arrow_schema: str | None = Field(default=None, alias="schema", description="The Arrow schema, in base64.")
    ddl: str | None = Field(default=None, description="Alternatively, the schema as Spark DDL.")
    time_columns: Annotated[list[Pair[str | None]], FailFast] | None = Field(
        default=None, description="Pairs of a key and its column; the first is the default key."
    )
    unit: str | None = Field(default=None, examples=["us"])
    writer_timeout: Micros | None = None
    first_mark_delay: Micros | None = None
    rate_floor: Micros | None = None
    forget_after: Micros | None = None
    marks_retention: Micros | None = None
    transaction_timeout: Micros | None = None
    retention: Micros | None = Field(default=None, description="How long events are kept; null: forever.")
    retention_bytes: Count | None = Field(default=None, description="Older events than these bytes are removed.")


class NewStreamForm(Form):
    """A stream to create. With an id chosen by the client the request is idempotent."""

    name: Name = Field(examples=["shop/orders"])
    id: Count | None = None
    segments: Annotated[int, Field(ge=1, le=MAX_SEGMENTS)] = 1
    settings: SettingsForm = Field(default_factory=lambda: SettingsForm.model_validate({}))


class ScaleForm(Form):
    """Segments to seal, and the key ranges of the segments that replace them."""

    epoch: Count | None = Field(default=None, description="The expected epoch; a Conflict if it has changed.")
    seal: Annotated[list[Int64], Field(max_length=MAX_SEGMENTS, fail_fast=True)]
    ranges: Annotated[list[Pair[float]], Field(max_length=MAX_SEGMENTS, fail_fast=True)]


class StreamView(BaseModel):
    """A stream: its settings, layout and state."""

    id: int
    name: str
    bucket: int
    settings: dict[str, Any]
    layout: dict[str, Any]
    ddl: str | None
    is_sealed: bool
    version: int
    created_at: int


class ClaimView(BaseModel):
    """A reader that retention waits for, and the first offset of each segment that it may still read."""

    kind: str
    name: str
    offsets: dict[str, int]


class RetentionView(BaseModel):
    """The head of a stream, how far its segments are due to be removed, and the readers that hold them back."""

    stream: str
    head: dict[str, int]
    due: dict[str, int]
    waits_for: list[ClaimView]
    age: int | None
    size: int | None


class StreamsView(BaseModel):
    """Streams, sorted by name."""

    streams: list[StreamView]


ROUTES = APIRouter(tags=["streams"], route_class=FormRoute)


def _stream_view(stream: StreamInfo) -> dict[str, object]:
    return {**save_stream(stream), "ddl": stream.settings.ddl}


@ROUTES.get("/streams", response_model=StreamsView)
async def list_streams(context: Context) -> JsonResponse:
    """Return the streams that the token covers."""
    context.allow_some("read")
    catalog = context.backend.catalog
    return await context.answer(
        lambda: {"streams": [_stream_view(stream) for stream in catalog.all() if context.may_see(stream.name)]}
    )


@ROUTES.post("/streams", response_model=StreamView, status_code=201)
@needs("admin")
async def create_stream(context: Context, form: NewStreamForm) -> JsonResponse:
    """Create a stream."""
    context.allow("admin", check_stream_name(form.name))

    def work() -> dict[str, object]:
        settings = settings_from_form(form.settings)
        return _stream_view(context.backend.catalog.create(form.name, settings, form.segments, stream_id=form.id))

    return await context.answer(work, 201)


@ROUTES.get("/stream", response_model=StreamView)
async def find_stream(context: Context, name: Annotated[str, Query(examples=["shop/orders"])]) -> JsonResponse:
    """Return the stream with a name."""
    stream = await context.find(name, "read")
    return await context.answer(lambda: _stream_view(stream))


@ROUTES.get("/streams/{stream}", response_model=StreamView)
async def show_stream(context: Context, stream: StreamId, name: StreamName = None) -> JsonResponse:
    """Return the current state of a stream."""
    info = await context.stream(stream, name, "read")
    return await context.answer(lambda: _stream_view(context.backend.catalog.refresh(info)))


@ROUTES.patch("/streams/{stream}", response_model=StreamView)
@needs("admin")
async def alter_stream(context: Context, stream: StreamId, form: SettingsForm, name: StreamName = None) -> JsonResponse:
    """Change the named settings. A schema is the present one with new nullable columns at its end."""
    info = await context.stream(stream, name, "admin")
    alter = context.backend.catalog.alter
    return await context.answer(lambda: _stream_view(alter(info, changes_from_form(form))))


@ROUTES.get("/streams/{stream}/retention", response_model=RetentionView)
async def show_retention(context: Context, stream: StreamId, name: StreamName = None) -> JsonResponse:
    """Return what retention has removed of a stream, what is due, and which readers it waits for."""
    info = await context.stream(stream, name, "read")
    return await context.answer(lambda: context.backend.retention(info).save())


@ROUTES.delete("/streams/{stream}", response_model=DoneView)
async def delete_stream(context: Context, stream: StreamId, name: StreamName = None) -> JsonResponse:
    """Delete a stream with its events and marks."""
    info = await context.stream(stream, name, "admin")
    await context.run(context.backend.catalog.delete, info)
    return JsonResponse({})


@ROUTES.post("/streams/{stream}/scale", response_model=StreamView)
@needs("admin")
async def scale_stream(context: Context, stream: StreamId, form: ScaleForm, name: StreamName = None) -> JsonResponse:
    """Seal segments and open their successors."""
    info = await context.stream(stream, name, "admin")

    def change(layout: Layout) -> Layout:
        if form.epoch is not None and form.epoch != layout.epoch:
            raise Conflict(
                f"The stream {info.name!r} is in epoch {layout.epoch}, not {form.epoch}.",
                rule="A change applies only to the layout it was computed from.",
                remedy=f"Read the stream again and compute the change from epoch {layout.epoch}.",
                stream=info.name,
                epoch=layout.epoch,
            )
        return layout.replace(form.seal, [(low, high) for low, high in form.ranges])

    return await context.answer(lambda: _stream_view(context.backend.log.scale(info, change)))


@ROUTES.post("/streams/{stream}/seal", response_model=StreamView)
async def seal_stream(context: Context, stream: StreamId, name: StreamName = None) -> JsonResponse:
    """Seal a stream: it takes no more events."""
    info = await context.stream(stream, name, "admin")
    return await context.answer(lambda: _stream_view(context.backend.log.seal(info)))


_DURATIONS: Final = (
    "writer_timeout",
    "first_mark_delay",
    "rate_floor",
    "forget_after",
    "marks_retention",
    "transaction_timeout",
    "retention",
)


def settings_from_form(form: SettingsForm) -> StreamSettings:
    """Return the settings of a new stream, or raise an error for invalid ones.

    >>> settings_from_form(
    ...     SettingsForm.model_validate({"ddl": "id BIGINT", "writer_timeout": 5_000_000})
    ... ).writer_timeout
    5000000
    """
    settings = changes_from_form(form)
    schema = settings.pop("schema", None)
    unit = settings.pop("unit", "us")
    columns = settings.pop("time_columns", None)
    # The default key without a column means: no time columns.
    columns = None if columns == {DEFAULT_KEY: None} else columns
    return make_settings(schema=schema, time_columns=columns, unit=unit, **settings)


def changes_from_form(form: SettingsForm) -> dict[str, Any]:
    """Return the settings that a request names, as `Stream.alter` takes them."""
    if form.arrow_schema is not None and form.ddl is not None:
        raise RequestInvalid(
            "The request has both a schema and a ddl.",
            rule="The schema of a stream is given once: as an Arrow schema, or as Spark DDL.",
            remedy="Leave out schema or ddl.",
        )
    changes: dict[str, Any] = {}
    if form.model_fields_set & {"arrow_schema", "ddl"}:
        changes["schema"] = form.ddl if form.arrow_schema is None else _decode_schema(form.arrow_schema)
    if "retention_bytes" in form.model_fields_set:
        changes["retention_bytes"] = form.retention_bytes
    for name in _DURATIONS:
        if name in form.model_fields_set:
            value = getattr(form, name)
            changes[name] = None if value is None else timedelta(microseconds=value)
    if form.unit is not None:
        changes["unit"] = form.unit
    if form.time_columns is not None:
        pairs = [(key, column) for key, column in form.time_columns]
        # A dict would hide duplicate keys; pass the list on, which the check of time columns refuses.
        keys = [key for key, _ in pairs]
        changes["time_columns"] = dict(pairs) if len(set(keys)) == len(keys) else keys
    return changes


def _decode_schema(text: str) -> Any:
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise SchemaInvalid(
            "The Arrow schema cannot be read.",
            rule="schema is the output of pyarrow.Schema.serialize(), in base64.",
            remedy="Send the schema as ddl instead, for example 'id BIGINT, at TIMESTAMP'.",
        ) from error
