"""Which client asks a cluster, when brokers come back."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from floodmark.kafka import KafkaCluster, KafkaSettings


@pytest.mark.parametrize(
    ("code", "is_same"),
    [
        (KafkaError.FENCED_LEADER_EPOCH, False),
        (KafkaError.UNKNOWN_LEADER_EPOCH, False),
        (KafkaError.LEADER_NOT_AVAILABLE, True),
    ],
)
def test_a_client_that_knows_the_leaders_from_before_is_replaced(code: int, is_same: bool) -> None:
    """Else it would ask in vain until it looks at them again by itself, minutes later."""
    asked: list[Any] = []

    def ask(admin: Any) -> str:
        asked.append(admin)
        if len(asked) == 1:
            raise KafkaException(KafkaError(code))
        return "answer"

    assert KafkaCluster(KafkaSettings.of("127.0.0.1:1"))._request(ask, "asking") == "answer"
    assert (asked[0] is asked[1]) is is_same
