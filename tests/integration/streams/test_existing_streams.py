"""Streams that are created if they do not exist, on all backends."""

from typing import Any

import pytest

from floodmark.errors import StreamDiffers, StreamExists
from floodmark.streams import StreamHome
from support.streams.reading import code_of

DEFINITION: dict[str, Any] = {"schema": "id BIGINT, at TIMESTAMP", "time_columns": "at", "writer_timeout": "5s"}


def test_an_existing_stream_is_opened_if_its_definition_is_the_same(home: StreamHome) -> None:
    created = home.create_stream("s", segments=2, if_exists="open", **DEFINITION)
    created.split(0)
    opened = home.create_stream("s", segments=2, if_exists="open", **DEFINITION)
    assert opened.info.id == created.info.id
    with pytest.raises(StreamExists):
        home.create_stream("s", segments=2, **DEFINITION)
    with pytest.raises(StreamDiffers) as refusal:
        home.create_stream("s", schema="id BIGINT", unit="ms", if_exists="open")
    differences = refusal.value.fields["differences"]
    assert isinstance(differences, dict)
    assert differences["schema"] == ("id int64, at timestamp[us, tz=UTC]", "id int64")
    assert differences["writer_timeout"] == (5_000_000, 60_000_000)
    assert sorted(differences) == ["schema", "segments", "time_columns", "unit", "writer_timeout"]
    assert code_of(lambda: home.create_stream("s", if_exists="replace")) == "invalid-option"
    assert home.create_stream("t", if_exists="open").info.id != created.info.id
