"""Which row goes to which partition and group, and when that may change. Several processes must agree on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from floodmark.bindings import Place, Stop
from floodmark.errors import InvalidOption, SinkGroupsUnequal, SinkLayoutChanged
from floodmark.sinks._order import is_at_most, is_same
from floodmark.sinks._progress import GroupLayout, Progress

_SEED: Final = 0x9747B28C
_FACTOR: Final = 0x5BD1E995
_BITS: Final = 0xFFFFFFFF


def partition_of(key: bytes | None, partitions: int) -> int:
    """Return the partition of a key, as other clients of Kafka choose it. All rows without a key go to one partition.

    >>> [partition_of(key, 4) for key in (b"21", b"foobar", None)]
    [0, 2, 1]
    """
    return (_murmur2(key or b"") & 0x7FFFFFFF) % partitions


def group_of(partition: int, layout: GroupLayout) -> int:
    """Return the group that writes a partition.

    >>> [group_of(partition, GroupLayout(partitions=5, groups=2)) for partition in range(5)]
    [0, 1, 0, 1, 0]
    """
    return partition % layout.groups


def group_name(sink: str, layout: GroupLayout, group: int) -> str:
    """Return the name under which a group writes. With another layout it has another one.

    >>> group_name("out", GroupLayout(4, 2), 1)
    'out/1.1'
    """
    return f"{sink}/{layout.version}.{group}"


def check_layout(layout: GroupLayout) -> GroupLayout:
    """Return a layout, or refuse one that leaves groups without partitions."""
    if not 0 < layout.groups <= layout.partitions:
        raise InvalidOption(
            f"A layout has {layout.groups} groups for {layout.partitions} partitions.",
            rule="Each group has at least one partition.",
            remedy="Use as many groups as there are tasks at a time, and not more than partitions.",
            groups=layout.groups,
            partitions=layout.partitions,
        )
    return layout


@dataclass(frozen=True, slots=True)
class GroupsStart:
    """How a sink of several groups starts."""

    layout: GroupLayout
    """The one to be used: with the version that follows, if it has changed."""
    close_first: Progress | None
    """What all groups have written, and the closed record does not say yet."""
    stops: tuple[Stop, ...]
    """Where batches must end before all groups are equal."""

    def is_change(self, closed: Progress) -> bool:
        """Return whether rows will go to other groups than before."""
        return self.layout != closed.layout


def decide_groups(
    closed: Progress,
    groups: Mapping[int, Progress],
    *,
    wanted: GroupLayout,
    query_id: str | None = None,
) -> GroupsStart:
    """Return how to start, from the closed record and those of the groups, all of which are fenced; or refuse.

    `groups` has those that have written since the layout was chosen; one that is missing is where `closed` is.
    `query_id` is the query that will write, if it is known.
    """
    layout = closed.layout
    if layout is None:
        raise SinkLayoutChanged(
            f"The sink {closed.sink!r} was written as one, and is now to be written in {wanted.groups} groups.",
            rule="How a sink is written is part of what it is.",
            remedy="Write it as before, or name a new sink.",
            sink=closed.sink,
        )
    places: dict[int, Place] = {
        group: groups[group].ends if group in groups else closed.ends for group in range(layout.groups)
    }
    _check_not_behind(closed, places)
    ahead = {group for group, place in places.items() if not is_same(place, closed.ends)}
    close_first = None
    if len(ahead) == layout.groups and all(is_same(place, places[0]) for place in places.values()):
        close_first, ahead = groups[0], set()
    if not ahead:
        changed = wanted._replace(version=layout.version) != layout
        chosen = check_layout(wanted)._replace(version=layout.version + changed)
        return GroupsStart(chosen, close_first, ())
    if wanted._replace(version=layout.version) != layout:
        raise SinkLayoutChanged(
            f"Groups {sorted(ahead)} of the sink {closed.sink!r} are ahead of the others, and its layout would change "
            f"from {layout} to {wanted}.",
            rule="Rows stay in their groups until all are equally far, or they would be written twice or not at all.",
            remedy="Start it with the layout it had, and change that when the next batch is written.",
            sink=closed.sink,
            layout=tuple(layout),
            wanted=tuple(wanted),
        )
    if closed.is_stateful and query_id is not None and any(groups[group].query_id != query_id for group in ahead):
        raise SinkGroupsUnequal(
            f"Groups {sorted(ahead)} of the sink {closed.sink!r} are ahead of the others, and the query "
            f"{query_id!r} is not the one that wrote them.",
            rule="Another query may put out the windows of a batch otherwise, and half of them is written.",
            remedy="Start the query with the checkpoint it had.",
            sink=closed.sink,
            groups=sorted(ahead),
        )
    return GroupsStart(layout, None, _stops(closed, [places[group] for group in sorted(ahead)]))


def _stops(closed: Progress, ahead: list[Place]) -> tuple[Stop, ...]:
    """Return where batches end that some groups have written; with state there is one such batch."""
    places: list[Place] = []
    for place in sorted(ahead, key=lambda place: [offset.ts or 0 for _, offset in sorted(place.items())]):
        if not any(is_same(place, other) for other in places):
            places.append(place)
    return (Stop(closed.ends, in_one=False), *(Stop(place, in_one=closed.is_stateful) for place in places))


def _check_not_behind(closed: Progress, places: Mapping[int, Place]) -> None:
    behind = [group for group, place in places.items() if not is_at_most(closed.ends, place)]
    ends = [place for group, place in places.items() if not is_same(place, closed.ends)]
    # Rows without state are gated one by one, and so groups may be anywhere beyond what is closed.
    if behind or (closed.is_stateful and any(not is_same(place, ends[0]) for place in ends)):
        raise SinkGroupsUnequal(
            f"Groups of the sink {closed.sink!r} are at "
            f"{ {group: _times(place) for group, place in places.items()} }, and {_times(closed.ends)} is closed.",
            rule="A batch begins when all groups have written the one before it.",
            remedy="Look for another program that writes to the progress topic.",
            sink=closed.sink,
            groups=behind,
        )


def _times(place: Place) -> dict[str, int | None]:
    return {source: offset.ts for source, offset in sorted(place.items())}


def _murmur2(data: bytes) -> int:
    length = len(data)
    mixed = (_SEED ^ length) & _BITS
    for place in range(0, length - length % 4, 4):
        word = int.from_bytes(data[place : place + 4], "little") * _FACTOR & _BITS
        word = (word ^ word >> 24) * _FACTOR & _BITS
        mixed = mixed * _FACTOR & _BITS ^ word
    rest = data[length - length % 4 :]
    if rest:
        mixed = (mixed ^ int.from_bytes(rest, "little")) * _FACTOR & _BITS
    mixed = (mixed ^ mixed >> 13) * _FACTOR & _BITS
    return mixed ^ mixed >> 15
