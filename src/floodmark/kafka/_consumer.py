"""A consumer of partitions that it is told to read: it joins no group, and stores no offset."""

from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer

from floodmark.kafka._failures import LastError, new_client
from floodmark.kafka._settings import KafkaSettings


def new_consumer(
    settings: KafkaSettings,
    said: LastError,
    *,
    committed: bool = True,
    defaults: Mapping[str, Any] | None = None,
    **own: Any,
) -> Consumer:
    """Return a consumer that says where a partition ends, and that an offset is gone.

    The settings may change the `defaults`, but not the `own` options, whose dots are written as underscores.
    """
    options = settings.client(
        # Nobody joins the group, but the client insists on a name.
        group_id="floodmark",
        enable_auto_commit=False,
        enable_auto_offset_store=False,
        enable_partition_eof=True,
        auto_offset_reset="error",
        isolation_level="read_committed" if committed else "read_uncommitted",
        **own,
    )
    return new_client(Consumer, {**(defaults or {}), **options, "error_cb": said}, settings)
