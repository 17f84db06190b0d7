"""What a fetcher reads without asking a broker."""

import pytest

from floodmark.errors import KafkaAway
from floodmark.kafka import Fetcher, KafkaSettings


def test_an_empty_range_is_read_without_a_broker() -> None:
    fetcher = Fetcher(KafkaSettings.of("127.0.0.1:1"), patience=0)
    assert list(fetcher.read("orders", 0, 5, 5)) == []
    assert list(fetcher.read("orders", 0, 6, 5)) == []
    with pytest.raises(KafkaAway):
        list(fetcher.read("orders", 0, 5, 6))
    fetcher.close()
