"""Buckets are shared evenly, and few move."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError
from floodmark.streams.definition import assign_buckets, bucket_of


def sizes(owners: dict[int, str], controllers: list[str]) -> list[int]:
    return [sum(owner == name for owner in owners.values()) for name in controllers]


def test_s46_any_set_of_controllers_shares_evenly() -> None:
    owners: dict[int, str] = {}
    for names in ("1", "12", "1234", "134", "256789", "789", "789"):
        before, owners = owners, assign_buckets(10, names, owners)
        assert list(owners) == list(range(10))
        shares = sizes(owners, list(names))
        assert max(shares) - min(shares) <= 1
        assert sum(shares) == 10
        if set(before.values()) == set(names):
            assert owners == before
    assert assign_buckets(10, [], owners) == {}


@given(
    st.integers(1, 6),
    st.lists(st.sampled_from("abcd"), min_size=1, unique=True),
    st.dictionaries(st.integers(0, 8), st.sampled_from("abcdxy"), max_size=8),
)
def test_no_spread_moves_fewer(count: int, names: list[str], current: dict[int, str]) -> None:
    owners = assign_buckets(count, names, current)
    shares = sizes(owners, names)
    assert max(shares) - min(shares) <= 1
    assert sum(shares) == count
    assert assign_buckets(count, names[::-1], dict(reversed(current.items()))) == owners
    kept = sum(current.get(bucket) == owner for bucket, owner in owners.items())
    held = {name: sum(current.get(bucket) == name for bucket in range(count)) for name in names}
    share, more = divmod(count, len(names))
    best = max(sum(min(held[name], share + (name in lucky)) for name in names) for lucky in combinations(names, more))
    assert kept == best


def test_a_stream_stays_in_its_bucket() -> None:
    assert [bucket_of(name, 100) for name in ("orders", "payments", "orders")] == [49, bucket_of("payments", 100), 49]
    counts = [0] * 100
    for number in range(20_000):
        counts[bucket_of(f"stream-{number}", 100)] += 1
    assert min(counts) > 130


@pytest.mark.parametrize(("stream", "buckets"), [("", 10), (None, 10), ("s", 0), ("s", -1), ("s", True), ("s", 1.5)])
def test_bad_names_and_numbers(stream: str, buckets: int) -> None:
    with pytest.raises(FloodmarkError):
        bucket_of(stream, buckets)
    if stream:
        with pytest.raises(FloodmarkError):
            assign_buckets(buckets, ["a"])
