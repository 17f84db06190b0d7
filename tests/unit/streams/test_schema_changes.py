"""Which changes of a stream's schema are allowed: nullable columns may be added at the end, and nothing else."""

import pyarrow as pa
import pytest

from floodmark.errors import FloodmarkError, InvalidOption, SchemaChangeRefused
from floodmark.streams.definition import StreamSettings, alter_settings, make_settings

BEFORE = "id BIGINT NOT NULL, at TIMESTAMP, note STRING"

REFUSED = {
    "a column that is dropped": ("id BIGINT NOT NULL, at TIMESTAMP", "'note' would be removed or renamed"),
    "a column that is renamed": ("id BIGINT NOT NULL, at TIMESTAMP, text STRING", "'note' would be removed or renamed"),
    "another type": ("id BIGINT NOT NULL, at TIMESTAMP, note BINARY", "'note' would change from STRING to BINARY"),
    "a wider type": ("id DECIMAL(38,0) NOT NULL, at TIMESTAMP, note STRING", "'id' would change from BIGINT"),
    "made NOT NULL": ("id BIGINT NOT NULL, at TIMESTAMP, note STRING NOT NULL", "'note' would become NOT NULL"),
    "made nullable": ("id BIGINT, at TIMESTAMP, note STRING", "'id' would become nullable"),
    "another order": ("at TIMESTAMP, id BIGINT NOT NULL, note STRING", "'id' would change its place"),
    "a column in front": ("new INT, id BIGINT NOT NULL, at TIMESTAMP, note STRING", "'id' would change its place"),
    "a NOT NULL column": (f"{BEFORE}, new INT NOT NULL", "The new column 'new' is NOT NULL"),
    "no schema": (None, "The schema would be removed"),
}


@pytest.mark.parametrize(("schema", "fact"), REFUSED.values(), ids=REFUSED)
def test_what_would_change_stored_events_is_refused_with_the_way_out(schema: str | None, fact: str) -> None:
    settings = make_settings(schema=BEFORE, time_columns="at")
    with pytest.raises(SchemaChangeRefused, match=fact) as refused:
        alter_settings(settings, {"schema": schema})
    assert "create another stream" in refused.value.remedy


def test_a_stream_without_a_schema_cannot_get_one() -> None:
    with pytest.raises(SchemaChangeRefused, match="would get a schema"):
        alter_settings(make_settings(), {"schema": "id BIGINT"})


def test_columns_are_added_at_the_end_as_often_as_wanted_and_adding_them_again_changes_nothing() -> None:
    settings = make_settings(schema="id BIGINT")
    one = alter_settings(settings, {"schema": "id BIGINT, note STRING"})
    two = alter_settings(one, {"schema": one.schema.append(pa.field("tags", pa.list_(pa.string())))})
    assert two.ddl == "id BIGINT, note STRING, tags ARRAY<STRING>"
    assert (settings.first_columns, one.first_columns, two.first_columns) == (None, 1, 1)
    assert alter_settings(two, {"schema": two.ddl}) == two
    assert StreamSettings.load(two.save()) == two


def test_a_new_column_can_become_a_time_column_in_the_same_step() -> None:
    settings = make_settings(schema="id BIGINT, at TIMESTAMP", time_columns="at")
    changes = {"schema": "id BIGINT, at TIMESTAMP, paid_at TIMESTAMP", "time_columns": ["at", "paid_at"]}
    assert alter_settings(settings, changes).keys == ("at", "paid_at")


@pytest.mark.parametrize("schema", ["id BIGINT, note STRNG", "id BIGINT, id INT", 7])
def test_a_schema_that_is_none_is_refused_as_when_a_stream_is_created(schema: object) -> None:
    with pytest.raises(FloodmarkError) as expected:
        make_settings(schema=schema)
    with pytest.raises(type(expected.value)):
        alter_settings(make_settings(schema="id BIGINT"), {"schema": schema})


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1 GB", 2**63])
def test_a_retention_in_bytes_is_a_whole_number_above_0(value: object) -> None:
    with pytest.raises(InvalidOption, match="retention_bytes"):
        make_settings(retention_bytes=value)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="retention_bytes"):
        alter_settings(make_settings(), {"retention_bytes": value})


def test_a_retention_is_a_duration_above_0_or_none() -> None:
    settings = make_settings(retention="7 days", retention_bytes=2**30)
    assert (settings.retention, settings.retention_bytes) == (7 * 86_400 * 10**6, 2**30)
    assert StreamSettings.load(settings.save()) == settings
    kept = alter_settings(settings, {"retention": None, "retention_bytes": None})
    assert not kept.has_retention
    with pytest.raises(InvalidOption, match="retention"):
        make_settings(retention="0 seconds")
