"""The progress record of a sink: how far it has written. It is stored with the rows, in one transaction.

The record of a parallel sink also has its group layout: which group of partitions each task writes.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from floodmark._util.codec import parse_json
from floodmark.bindings.offsets import QueryPosition, compare_offsets, load_query_position, save_query_position
from floodmark.errors import InvalidOption, InvalidValue, SinkProgressInvalid, SnapshotInvalid


class SinkMark(NamedTuple):
    """The last watermark written to the marks topic for a time key, and the sequence number of its record."""

    time: int
    seq: int


class GroupLayout(NamedTuple):
    """How rows are divided among groups: numbers of partitions and groups, the hash function, the layout's version."""

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
    """Return the sink name under which a group records its progress; it changes with the layout's version.

    >>> group_name("out", GroupLayout(4, 2), 1)
    'out/1.1'
    """
    return f"{sink}/{layout.version}.{group}"


def check_layout(layout: GroupLayout) -> GroupLayout:
    """Return the layout, or raise an error if a group would have no partition."""
    if not 0 < layout.groups <= layout.partitions:
        raise InvalidOption(
            f"The layout has {layout.groups} groups for {layout.partitions} partitions.",
            rule="Each group needs at least one partition.",
            remedy=f"Set groups to the number of parallel tasks, at most {layout.partitions}.",
            groups=layout.groups,
            partitions=layout.partitions,
        )
    return layout


_FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sink has written: everything up to `ends`; its last batch began at `starts`.

    >>> start, end = SourceOffset("q", None, {}), SourceOffset("q", 2000, {0: 7}, {"at": 50})
    >>> progress = Progress("out", "orders", "t1", 1, "6f1c", {"s": start}, {"s": end}, rows=7, total=7)
    >>> Progress.load(progress.save()) == progress
    True
    """

    sink: str
    topic: str
    """The topic with the rows."""
    topic_id: str
    """Id of the topic, which differs if the topic is deleted and created again."""
    version: int
    """Version of the program; a process with a lower version does not start."""
    query_id: str
    """The query whose state corresponds to `ends`."""
    starts: QueryPosition
    ends: QueryPosition
    is_stateful: bool = False
    rows: int = 0
    """Number of rows in the last batch."""
    total: int = 0
    """Number of rows written to the topic in total."""
    position: Mapping[int, int] = field(default_factory=dict)
    """End offset of each partition of the topic after the last batch."""
    marks: Mapping[str, SinkMark] = field(default_factory=dict)
    """The last mark of each time key."""
    layout: GroupLayout | None = None
    """The group layout, in parallel mode."""
    start: int = 0
    """In parallel mode, how many drivers have started; tasks of an earlier driver do not write."""

    @property
    def key(self) -> bytes:
        """The key of the record: the name of the sink."""
        return self.sink.encode()

    def save(self) -> bytes:
        """Return the value of the record, as JSON."""
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
            "start": self.start,
        }
        return json.dumps(saved, separators=(",", ":")).encode()

    @classmethod
    def load(cls, value: bytes | str) -> "Progress":
        """Return the progress saved in the value of a record."""
        try:
            saved = parse_json(value)
            if saved["form"] != _FORMAT_VERSION:
                raise _invalid_record(
                    value, f"Its format version is {saved['form']}; this release reads version {_FORMAT_VERSION}."
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
                start=int(saved.get("start", 0)),
            )
        except (AttributeError, KeyError, TypeError, ValueError, SnapshotInvalid) as error:
            raise _invalid_record(value, "A progress record is JSON in the format of this release.") from error


def newest_progress(
    sink: str, records: Iterable[tuple[bytes | None, bytes | None]], last: Progress | None = None
) -> Progress | None:
    """Return the last progress of a sink among the (key, value) records of a progress topic.

    `last` is the progress before these records. Records of other sinks and records without a value are skipped. It is
    an error if a record of the sink cannot be read, or goes back behind the one before it.

    >>> newest_progress("out", [(b"other", b"?"), (b"out", None)]) is None
    True
    """
    own = sink.encode()
    for key, value in records:
        if key == own and value is not None:
            progress = Progress.load(value)
            if last is not None:
                _check_not_backwards(last, progress)
            last = progress
    return last


def check_sink_name(name: object) -> str:
    """Return the name of a sink, or raise an error if it is not valid.

    >>> check_sink_name("")
    Traceback (most recent call last):
    floodmark.errors.InvalidValue: The sink's name is ''. ... [invalid-value]
    """
    if isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable() and "/" not in name:
        return name
    raise InvalidValue(
        f"The sink's name is {name!r}.",
        rule="A sink's name is 1 to 200 printable characters without a slash.",
        remedy="Set a name such as 'orders-out' that stays the same across restarts.",
        name=name,
    )


def _check_not_backwards(last: Progress, progress: Progress) -> None:
    if last.ends.keys() != progress.ends.keys() or last.topic_id != progress.topic_id:
        # The sink has deliberately started over with another topic or other sources.
        return
    back = {
        source: (offset.ts, progress.ends[source].ts)
        for source, offset in last.ends.items()
        if compare_offsets(offset, progress.ends[source]) not in (-1, 0)
    }
    if back or progress.version < last.version or progress.total < last.total:
        raise SinkProgressInvalid(
            f"The progress of the sink {last.sink!r} goes back: from {last.total} rows at "
            f"{position_timestamps(last.ends)} by version {last.version} to {progress.total} at "
            f"{position_timestamps(progress.ends)} by version {progress.version}.",
            rule="Each progress record of a sink is at or after the one before it.",
            remedy="Find the other program that writes to the progress topic, and revoke its write permission.",
            sink=last.sink,
            back=back,
        )


def position_timestamps(position: QueryPosition) -> dict[str, int | None]:
    """Return the timestamp of each source at a query position, for error messages."""
    return {key.replace("\n", " #"): offset.ts for key, offset in sorted(position.items())}


def _invalid_record(value: bytes | str, rule: str) -> SinkProgressInvalid:
    return SinkProgressInvalid(
        f"A progress record is {value!r:.200}.",
        rule=rule,
        remedy="Stop other programs from writing to the progress topic; the sink writes nothing until it is readable.",
    )


def first_needed_timestamp(progress: Progress, source: str) -> int | None:
    """Return the first timestamp of a source that the sink must still distinguish; None if there is none.

    A stateful query that rebuilds its state must end a batch where the last written batch began, if that is after the
    first row.
    """
    start, end = progress.starts[source].ts, progress.ends[source].ts
    return start if progress.is_stateful and start is not None else end
