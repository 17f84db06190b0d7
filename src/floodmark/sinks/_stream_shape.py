"""What a stream must look like so that the rows of a query fit into it; if it is missing, it is made so."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from floodmark.errors import SinkTopicUnfit, UnknownStream
from floodmark.streams import Stream, StreamHome
from floodmark.streams._ddl import write_ddl


@dataclass(frozen=True, slots=True)
class StreamShape:
    """The columns of rows, and which of them have the times.

    >>> shape = StreamShape(pa.schema([pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]), {"at": "at"})
    >>> with connect() as home:
    ...     shape.make(home, "shop/per-minute").settings.ddl
    'at TIMESTAMP'
    """

    schema: Any
    """Whether a column may be null is up to the stream."""
    times: Mapping[str, str]
    """The column of each time key."""
    segments: int = 1
    """How many a stream gets that is made."""

    def find(self, home: StreamHome, name: str) -> Stream | None:
        """Return the stream of a name, if there is one, or refuse one that the rows do not fit into."""
        try:
            stream = home.stream(name)
        except UnknownStream:
            return None
        settings = stream.settings
        if settings.schema is None:
            raise _unfit(name, "has no schema", f"The rows have the columns {self._text(self.schema)}.")
        ours, theirs = self._text(self.schema, in_order=False), self._text(settings.schema, in_order=False)
        if ours != theirs:
            columns = f"{self._text(settings.schema)}, and the rows have {self._text(self.schema)}"
            raise _unfit(name, f"has the columns {columns}", "Both have the same columns, of the same types.")
        if dict(settings.time_columns) != dict(self.times):
            times = f"{dict(settings.time_columns)}, and the query tells {dict(self.times)}"
            raise _unfit(name, f"has the time columns {times}", "Whoever writes to a stream tells all its times.")
        return stream

    def make(self, home: StreamHome, name: str) -> Stream:
        """Return a new stream of that name."""
        schema = pa.schema([_nullable(field) for field in self.schema])
        return home.create_stream(name, schema, self.segments, dict(self.times))

    @staticmethod
    def _text(schema: Any, *, in_order: bool = True) -> str:
        fields = [_nullable(field) for field in schema]
        return write_ddl(pa.schema(fields if in_order else sorted(fields, key=lambda field: str(field.name))))


def _nullable(field: Any) -> Any:
    return pa.field(field.name, _nullable_type(field.type), nullable=True)


def _nullable_type(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(kind.field(place)) for place in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable_type(kind.item_type))
    return kind


def _unfit(stream: str, fact: str, rule: str) -> SinkTopicUnfit:
    return SinkTopicUnfit(
        f"The stream {stream!r} {fact}.",
        rule=rule,
        remedy="Select and cast the columns, name their times with `times`, or write to a stream of another name.",
        stream=stream,
    )
