"""The progress record: how far a sink has written. It is stored together with the rows, or decided with them.

Parallel sinks also record their group layout here: which group of partitions each task writes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from floodmark.bindings.offsets import QueryPosition, compare_offsets, load_query_position, save_query_position
from floodmark.errors import InvalidOption, InvalidValue, SinkProgressInvalid, SnapshotInvalid


class SinkMark(NamedTuple):
    """A time that was told in the marks topic, and the number of the record that told it."""

    time: int
    seq: int


class GroupLayout(NamedTuple):
    """Which rows go to which group: the number of output partitions and of groups, the function and its version."""

    partitions: int
    groups: int
    function: str = "murmur2"
    version: int = 1


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


_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sink has written: everything up to `ends`, the last batch of which began at `starts`.

    >>> start, end = SourceOffset("q", None, {}), SourceOffset("q", 2000, {0: 7}, {"at": 50})
    >>> progress = Progress("out", "orders", "t1", 1, "6f1c", {"s": start}, {"s": end}, rows=7, total=7)
    >>> Progress.load(progress.save()) == progress
    True
    """

    sink: str
    topic: str
    """The topic that the rows are in."""
    topic_id: str
    """What tells it from another one that gets its name later."""
    version: int
    """That of the program; a process with a lower one ends."""
    query_id: str
    """The query whose state belongs to `ends`."""
    starts: QueryPosition
    ends: QueryPosition
    is_stateful: bool = False
    rows: int = 0
    """How many rows the last batch has had."""
    total: int = 0
    """How many rows were written to the topic in all."""
    position: Mapping[int, int] = field(default_factory=dict)
    """How far the rows fill the partitions of the topic."""
    marks: Mapping[str, SinkMark] = field(default_factory=dict)
    """Of each time key, what was told last."""
    layout: GroupLayout | None = None
    """In parallel mode, which group writes what."""

    @property
    def key(self) -> bytes:
        """The key of the record: the name of the sink."""
        return self.sink.encode()

    def save(self) -> bytes:
        """Return the value of the record, which is JSON."""
        saved = {
            "form": _FORMAT_VERSION,
            "sink": self.sink,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "version": self.version,
            "query_id": self.query_id,
            "starts": save_query_position(self.starts),
            "ends": save_query_position(self.ends),
            "is_stateful": self.is_stateful,
            "rows": self.rows,
            "total": self.total,
            "position": {str(partition): end for partition, end in sorted(self.position.items())},
            "marks": {key: mark._asdict() for key, mark in sorted(self.marks.items())},
            "layout": None if self.layout is None else self.layout._asdict(),
        }
        return json.dumps(saved, separators=(",", ":")).encode()

    @classmethod
    def load(cls, value: bytes | str) -> "Progress":
        """Return what the value of a record says."""
        try:
            saved = json.loads(value)
            if saved["form"] != _FORMAT_VERSION:
                raise _invalid_record(
                    value, f"It has the form {saved['form']}, and this release knows {_FORMAT_VERSION}."
                )
            return cls(
                sink=str(saved["sink"]),
                topic=str(saved["topic"]),
                topic_id=str(saved["topic_id"]),
                version=int(saved["version"]),
                query_id=str(saved["query_id"]),
                starts=load_query_position(saved["starts"]),
                ends=load_query_position(saved["ends"]),
                is_stateful=bool(saved["is_stateful"]),
                rows=int(saved["rows"]),
                total=int(saved["total"]),
                position={int(partition): int(end) for partition, end in saved["position"].items()},
                marks={str(key): SinkMark(int(mark["time"]), int(mark["seq"])) for key, mark in saved["marks"].items()},
                layout=None if saved["layout"] is None else GroupLayout(**saved["layout"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError, SnapshotInvalid) as error:
            raise _invalid_record(value, "It is JSON, as this release writes it.") from error


def newest_progress(
    sink: str, records: Iterable[tuple[bytes | None, bytes | None]], last: Progress | None = None
) -> Progress | None:
    """Return the last progress of a sink among records, (key, value), of a progress topic; `last` is what came before.

    Records of other sinks, and those without a value, are passed over. One of its own that cannot be read, or that
    says less than the one before it, is an error.

    >>> newest_progress("out", [(b"other", b"?"), (b"out", None)]) is None
    True
    """
    own = sink.encode()
    for key, value in records:
        if key == own and value is not None:
            found = Progress.load(value)
            if last is not None:
                _check_not_backwards(last, found)
            last = found
    return last


def check_sink_name(name: object) -> str:
    """Return the name of a sink, or refuse it.

    >>> check_sink_name("")
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The sink's name is ''. ... [invalid-value]
    """
    if isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable() and "/" not in name:
        return name
    raise InvalidValue(
        f"The sink's name is {name!r}.",
        rule="It is printable text of at most 200 characters without a slash, and not empty.",
        remedy="Use a name that stays the same when the program is started again.",
        name=name,
    )


def _check_not_backwards(last: Progress, found: Progress) -> None:
    if last.ends.keys() != found.ends.keys() or last.topic_id != found.topic_id:
        # Whoever has begun anew, by choice, has begun elsewhere.
        return
    back = {
        source: (offset.ts, found.ends[source].ts)
        for source, offset in last.ends.items()
        if compare_offsets(offset, found.ends[source]) not in (-1, 0)
    }
    if back or found.version < last.version or found.total < last.total:
        raise SinkProgressInvalid(
            f"The progress of the sink {last.sink!r} goes back: from {last.total} rows at {_end_timestamps(last)} "
            f"by version {last.version} to {found.total} at {_end_timestamps(found)} by version {found.version}.",
            rule="Each record of a sink says at least as much as the one before it.",
            remedy="Look for another program that writes to the progress topic, and take that right from it.",
            sink=last.sink,
            back=back,
        )


def _end_timestamps(progress: Progress) -> dict[str, int | None]:
    return {source: offset.ts for source, offset in sorted(progress.ends.items())}


def _invalid_record(value: bytes | str, rule: str) -> SinkProgressInvalid:
    return SinkProgressInvalid(
        f"A progress record is {value!r:.200}.",
        rule=rule,
        remedy="Check who else writes to the progress topic; nothing is written to the topic of the sink before.",
    )


def first_needed_timestamp(progress: Progress, source: str) -> int | None:
    """Return the first timestamp of a source that a sink may have to tell from those before; None if there is none.

    A query that builds its state anew must end a batch where the last written one began. Where that is before the first
    row, it begins there.
    """
    start, end = progress.starts[source].ts, progress.ends[source].ts
    return start if progress.is_stateful and start is not None else end
