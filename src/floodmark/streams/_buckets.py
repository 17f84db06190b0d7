"""Buckets: streams fall into a fixed number of them, and controllers share the buckets evenly."""

from collections.abc import Iterable, Mapping

from floodmark.errors import InvalidOption, InvalidValue
from floodmark.streams._key_points import stable_hash


def bucket_of(stream: str, buckets: int) -> int:
    """Return the bucket of a stream: the same in every process, for as long as there are as many buckets.

    >>> bucket_of("orders", 100)
    49
    """
    if not isinstance(stream, str) or not stream:
        raise InvalidValue(
            f"The name of the stream is {stream!r}.",
            rule="It is a string that is not empty.",
            remedy="Pass the full name of the stream.",
            stream=stream,
        )
    return stable_hash(stream) % _check_count(buckets)


def spread(buckets: int, controllers: Iterable[str], current: Mapping[int, str] | None = None) -> dict[int, str]:
    """Return the owner of each bucket: no controller has two more than another, and as few as possible move.

    The same arguments give the same answer in whatever order they come. Without controllers nobody owns anything.

    >>> owners = spread(4, ["a", "b"])
    >>> owners
    {0: 'a', 1: 'a', 2: 'b', 3: 'b'}
    >>> spread(4, ["a", "b", "c"], owners)
    {0: 'a', 1: 'a', 2: 'b', 3: 'c'}
    """
    names = sorted(set(controllers))
    count = _check_count(buckets)
    if not names:
        return {}
    held: dict[str, list[int]] = {name: [] for name in names}
    for bucket in range(count):
        owner = None if current is None else current.get(bucket)
        if owner in held:
            held[owner].append(bucket)
    share, left_over = divmod(count, len(names))
    # Who has most now gets the bucket more that some must get: then it need not give it away.
    by_size = sorted(names, key=lambda name: (-len(held[name]), name))
    quotas = {name: share + (place < left_over) for place, name in enumerate(by_size)}
    owners = {bucket: name for name in names for bucket in held[name][: quotas[name]]}
    free = iter([bucket for bucket in range(count) if bucket not in owners])
    for name in names:
        for _ in range(quotas[name] - min(len(held[name]), quotas[name])):
            owners[next(free)] = name
    return dict(sorted(owners.items()))


def _check_count(buckets: int) -> int:
    if isinstance(buckets, int) and not isinstance(buckets, bool) and buckets > 0:
        return buckets
    raise InvalidOption(
        f"The number of buckets is {buckets!r}.",
        rule="It is a whole number above 0, and stays the same for the life of a store.",
        remedy="Use 100 unless there is a reason not to.",
        buckets=buckets,
    )
