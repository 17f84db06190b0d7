"""The address of a sink's target (`to=`), and the writer it needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pyspark.sql.types import StructType

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption
from floodmark.sinks.startup import OnMissingBindings
from floodmark.spark.executors import Needs
from floodmark.spark.sink.batch_sink import SinkSpec
from floodmark.spark.sink.rows import RowFormat

if TYPE_CHECKING:
    from floodmark.kafka import KafkaSettings

_SCHEMES: Final = ("kafka", "delta", "file", "stream")


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of `write_stream`, for all kinds of targets. Durations are in microseconds."""

    parallel: int | None = None
    partitions: int | None = None
    version: int = 1
    append: bool = False
    on_missing_bindings: OnMissingBindings = "error"
    max_rows: int | None = None
    max_bytes: int | None = None
    linger: int = 10_000
    timeout: int = 60_000_000
    progress_topic: str | None = None
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of Kafka's client."""
    staged: bool = False
    """Whether a topic is written without transactions."""
    with_ts: bool = False
    """Whether rows in files have the column `_ts`."""


def sink_spec(to: str, sink: str, form: RowFormat, options: SinkOptions, schema: StructType) -> SinkSpec:
    """Return the spec of the writer for an address; refuse options that do not apply to the target."""
    scheme, _, rest = to.partition("://")
    if scheme == "kafka" and rest:
        return (_staged_topic_spec if options.staged else _kafka_spec)(to, sink, form, options)
    if scheme in ("delta", "file") and rest:
        return _files_spec(to, sink, form, options, schema)
    if scheme == "stream" and rest:
        return _stream_spec(rest, sink, form, options, schema)
    raise InvalidOption(
        f"`to` is {to!r}.",
        rule=f"It must be an address that begins with one of {', '.join(f'{scheme}://' for scheme in _SCHEMES)}.",
        remedy=did_you_mean(scheme, _SCHEMES, otherwise="Write for example kafka://localhost:9092/orders."),
        option="to",
        value=to,
    )


def needs_of_tasks(to: str, options: SinkOptions) -> Needs:
    """Return what the tasks that write to an address need; where the driver writes, they need nothing."""
    if not to.startswith("kafka://") or not (options.parallel or options.staged):
        return Needs()
    settings, _ = _parse_topic_address(to, options)
    return Needs(servers=settings.servers, client=tuple(sorted(settings.options.items())))


def _stream_spec(stream: str, sink: str, form: RowFormat, options: SinkOptions, schema: StructType) -> SinkSpec:
    from floodmark.sinks import TargetOptions
    from floodmark.spark.sink.streams import stream_spec

    names = ("parallel", "max_rows", "max_bytes", "progress_topic", "staged", "with_ts")
    inapplicable = {name: getattr(options, name) for name in names}
    for name, value in {**inapplicable, "mode": form.mode if form.mode == "upsert" else None}.items():
        if value:
            raise InvalidOption(
                f"{name} is {value!r} for a sink that writes to a stream.",
                rule="There the driver writes a batch in one transaction, and rows are only appended.",
                remedy=f"Leave {name} out; for smaller batches pass max_rows to read_stream.",
                option=name,
                value=value,
            )
    target = TargetOptions(
        version=options.version,
        partitions=options.partitions or 1,
        append=options.append,
        on_missing_bindings=options.on_missing_bindings,
        timeout=options.timeout / 1e6,
    )
    return stream_spec(stream, sink, form, schema, target, options.client)


def _files_spec(to: str, sink: str, form: RowFormat, options: SinkOptions, schema: StructType) -> SinkSpec:
    from floodmark.sinks.manifest.target import ManifestOptions
    from floodmark.spark.sink.files import FilesSpec, TableFormat

    kind: Literal["delta", "file"] = "delta" if to.startswith("delta:") else "file"
    path = to.removeprefix(f"{kind}://")
    if not path.startswith("/"):
        raise InvalidOption(
            f"`to` is {to!r}.",
            rule="It must have the absolute path of a directory that all of Spark's machines share.",
            remedy=f"Write for example {kind}:///data/orders.",
            option="to",
            value=to,
        )
    _refuse_options(options, "files", "parallel", "partitions", "max_rows", "max_bytes", "progress_topic", "client")
    if kind == "file" and form.mode == "upsert":
        raise InvalidOption(
            f"The mode of a sink that writes files is {form.mode!r}.",
            rule="Files are only added, so rows cannot replace others.",
            remedy="Leave mode out, or write to delta:// or kafka://.",
            option="mode",
            value=form.mode,
        )
    rows = TableFormat.of(schema, form, with_ts=options.with_ts or kind == "file")
    return FilesSpec(kind, Path(path), sink, ManifestOptions(options.version, options.append), rows)


def _staged_topic_spec(to: str, sink: str, form: RowFormat, options: SinkOptions) -> SinkSpec:
    from floodmark.sinks.manifest.target import ManifestOptions
    from floodmark.spark.sink.kafka import StagedTopicSpec

    _refuse_options(options, "staged rows", "parallel", "max_rows", "max_bytes")
    settings, topic = _parse_topic_address(to, options)
    return StagedTopicSpec(
        settings,
        topic,
        sink,
        ManifestOptions(options.version, options.append),
        form,
        partitions=options.partitions or 1,
        progress_topic=options.progress_topic,
        linger=options.linger / 1e6,
        timeout=options.timeout / 1e6,
    )


def _refuse_options(options: SinkOptions, what: str, *names: str) -> None:
    """Refuse options that do not apply to a target of this kind."""
    inapplicable = [name for name in names if getattr(options, name)]
    if options.on_missing_bindings != "error":
        inapplicable.append("on_missing_bindings")
    if inapplicable:
        raise InvalidOption(
            f"A sink that writes {what} is given {', '.join(inapplicable)}.",
            rule="There Spark's tasks write the rows of a batch, and one record closes it.",
            remedy=f"Leave {', '.join(inapplicable)} out.",
            option=inapplicable[0],
        )


def _parse_topic_address(to: str, options: SinkOptions) -> "tuple[KafkaSettings, str]":
    # Imported here: only topics need Kafka's client.
    from floodmark.kafka import KafkaSettings

    servers, _, topic = to.removeprefix("kafka://").partition("/")
    if not topic or "/" in topic:
        raise InvalidOption(
            f"`to` is {to!r}.",
            rule="It must name the brokers and one topic.",
            remedy="Write for example kafka://localhost:9092/orders.",
            option="to",
            value=to,
        )
    return KafkaSettings.of(servers, options.client), topic


def _kafka_spec(to: str, sink: str, form: RowFormat, options: SinkOptions) -> SinkSpec:
    from floodmark.sinks import TargetOptions
    from floodmark.spark.sink.kafka import KafkaSpec

    settings, topic = _parse_topic_address(to, options)
    target = TargetOptions(
        version=options.version,
        partitions=options.partitions or options.parallel or 1,
        progress_topic=options.progress_topic,
        marks=bool(form.times),
        stamp=form.has_ts,
        headers=form.has_headers,
        append=options.append,
        on_missing_bindings=options.on_missing_bindings,
        timeout=options.timeout / 1e6,
        linger=options.linger / 1e6,
        max_rows=options.max_rows,
        max_bytes=options.max_bytes,
    )
    return KafkaSpec(settings, topic, sink, target, form, options.parallel)
