"""How a sink starts: it begins, resumes, or is refused. Pure rules, for one writer and for groups of writers."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from floodmark.bindings import BindingSource
from floodmark.bindings.offsets import BatchStop, QueryPosition
from floodmark.errors import (
    FloodmarkError,
    SinkBindingsMissing,
    SinkGroupsUnequal,
    SinkLayoutChanged,
    SinkProgressMissing,
    SinkTopicMissing,
    SinkVersionOld,
)
from floodmark.sinks.gate import is_at_most, is_same
from floodmark.sinks.progress import GroupLayout, Progress, check_layout, first_needed_timestamp, position_timestamps

OnMissingBindings = Literal["error", "nonce"]


@dataclass(frozen=True, slots=True)
class SourceBounds:
    """What can be read of a source: [since, upper). `origin` is its first timestamp ever."""

    origin: int
    since: int
    upper: int
    is_held: bool = False
    """Whether the sink has held the source since it last wrote: then `since` has not passed what it needs."""

    @classmethod
    def of(cls, source: BindingSource, *, is_held: bool = False) -> "SourceBounds":
        """Return the bounds of a source."""
        return cls(source.origin, source.since, source.upper, is_held)

    def keeps(self, ts: int) -> bool:
        """Return whether positions of the sink at this timestamp are still those that it has recorded.

        At `since` itself they are if the sink began there: earlier timestamps had become one with it before.
        """
        return self.since == self.origin or self.since < ts or (self.since == ts and self.is_held)


BoundsLookup = Callable[[Iterable[str]], Mapping[str, SourceBounds]]
"""Returns the bounds of sources; sources without bindings are left out."""


@dataclass(frozen=True, slots=True)
class StartupState:
    """What a starting sink has read after it fenced earlier processes."""

    sink: str
    version: int
    topic: str
    topic_id: str | None
    """Current id of the topic; None if the topic does not exist."""
    has_records: bool
    """Whether the topic has any committed record."""
    progress: Progress | None
    bounds: Mapping[str, SourceBounds]
    """The bounds of each source that has bindings."""
    noun: str = "topic"
    """The word for the target in error messages."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Nothing was written yet: the first batch may begin anywhere."""

    topic: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Write what comes after `progress`."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class BeginElsewhere:
    """Leave the topic as it is and write a new one from the beginning; `reason` says why."""

    topic: str
    reason: FloodmarkError


Start = Begin | Resume | BeginElsewhere


def decide_start(
    state: StartupState,
    *,
    append: bool = False,
    on_missing_bindings: OnMissingBindings = "error",
    nonce: str = "",
) -> Start:
    """Return how a sink starts, or raise an error if it must not.

    `append` allows it to begin in a topic that has records. With `on_missing_bindings="nonce"`, a sink that cannot know
    what it has written begins in a new topic, with `nonce` in its name.

    >>> decide_start(StartupState("out", 1, "orders", None, False, None, {}))
    Begin(topic='orders')
    >>> decide_start(StartupState("out", 1, "orders", "t1", True, None, {}))
    Traceback (most recent call last):
    floodmark.errors.SinkProgressMissing: The topic 'orders' has records, but no progress of ... [sink-progress-missing]
    """
    progress = state.progress
    if progress is None:
        if state.has_records and not append:
            raise SinkProgressMissing(
                f"The {state.noun} {state.topic!r} has records, but no progress of the sink {state.sink!r} is known.",
                rule="The sink may have written these records itself, and would then write them again.",
                remedy="If other programs wrote them, or rows may repeat, set append=True; else name another "
                f"{state.noun}.",
                sink=state.sink,
                topic=state.topic,
            )
        return Begin(state.topic)
    if state.version < progress.version:
        raise SinkVersionOld(
            f"The sink {state.sink!r} was fenced off by a newer version: ours={state.version} "
            f"theirs={progress.version}.",
            rule="A sink does not resume with an older version than it was written with.",
            remedy=f"Stop this program, or start it with version {progress.version} or higher.",
            sink=state.sink,
            ours=state.version,
            theirs=progress.version,
        )
    if state.topic_id is None or state.topic_id != progress.topic_id:
        gone = "is gone" if state.topic_id is None else "was deleted and created again"
        raise SinkTopicMissing(
            f"The sink {state.sink!r} has written {progress.total} rows to the {state.noun} {progress.topic!r}, "
            f"which {gone}.",
            rule="A sink resumes only in the target it has written to.",
            remedy=_begin_anew_remedy(state),
            sink=state.sink,
            topic=progress.topic,
            rows=progress.total,
        )
    try:
        _check_bounds(state, progress)
    except SinkBindingsMissing as reason:
        if on_missing_bindings == "nonce":
            return BeginElsewhere(f"{state.topic}-{state.sink}-{nonce}", reason)
        raise
    return Resume(progress)


def topic_in_use(topic: str, sink: str, progress: Progress | None) -> str:
    """Return the topic that a sink for `topic` writes to: `topic`, or the one of its progress after `BeginElsewhere`.

    >>> topic_in_use("orders", "out", None)
    'orders'
    """
    if progress is None or progress.topic == topic or progress.topic.startswith(f"{topic}-{sink}-"):
        return topic if progress is None else progress.topic
    raise SinkTopicMissing(
        f"The sink {sink!r} has written to the topic {progress.topic!r}, but its topic is now {topic!r}.",
        rule="A sink has one topic.",
        remedy=f"Set the topic to {progress.topic!r}, or name a new sink.",
        sink=sink,
        topic=topic,
        written=progress.topic,
    )


def _begin_anew_remedy(state: StartupState) -> str:
    if state.noun == "topic":
        return "Name a new sink with a topic of its own, or delete the topic and its progress topic."
    return f"Name a new sink with a {state.noun} of its own, or delete the {state.noun} and drop the sink."


def _check_bounds(state: StartupState, progress: Progress) -> None:
    for source in sorted(progress.ends):
        bounds, needed, written = (
            state.bounds.get(source),
            first_needed_timestamp(progress, source),
            progress.ends[source].ts,
        )
        if bounds is None:
            raise SinkBindingsMissing(
                f"No persisted timestamp bindings for {source!r}, refusing to append to {progress.topic!r}.",
                rule="A sink knows what it has written by the timestamps of its sources.",
                remedy=f"Open the home with the bindings of {source!r}. {_begin_anew_remedy(state)}",
                source=source,
                topic=progress.topic,
            )
        if needed is not None and not bounds.keeps(needed):
            raise SinkBindingsMissing(
                f"The source {source!r} is compacted past what the sink {state.sink!r} needs: its since is "
                f"{bounds.since}, but the sink needs timestamps from {needed} on; refusing to append to "
                f"{progress.topic!r}.",
                rule="Timestamps at or below since are no longer distinct.",
                remedy="The sink's hold was released (by command or release_after); restore the home from a backup. "
                f"{_begin_anew_remedy(state)}",
                source=source,
                topic=progress.topic,
                since=bounds.since,
                needed=needed,
            )
        if written is not None and written >= bounds.upper:
            raise SinkBindingsMissing(
                f"The sink {state.sink!r} has written {source!r} up to {written}, but its bindings end at "
                f"{bounds.upper}; refusing to append to {progress.topic!r}.",
                rule="A sink writes only timestamps that were bound before.",
                remedy=f"The home may be an older copy: open the newest one. {_begin_anew_remedy(state)}",
                source=source,
                topic=progress.topic,
                upper=bounds.upper,
                written=written,
            )


@dataclass(frozen=True, slots=True)
class GroupStart:
    """How a parallel sink starts."""

    layout: GroupLayout
    """The layout to use, with the next version number if it has changed."""
    close_first: Progress | None
    """A batch that all groups have written and that is not closed yet."""
    stops: tuple[BatchStop, ...]
    """Where batches must end until all groups are at the same position."""

    def is_change(self, closed: Progress) -> bool:
        """Return whether the layout differs from that of the closed record."""
        return self.layout != closed.layout


def decide_group_start(
    closed: Progress,
    groups: Mapping[int, Progress],
    *,
    requested: GroupLayout,
    query_id: str | None = None,
) -> GroupStart:
    """Return how a parallel sink starts, from its closed record and those of its fenced groups; or raise an error.

    `groups` has the groups that have written since the layout was chosen; the others are where `closed` is. `query_id`
    is the query that will write, if known.
    """
    layout = closed.layout
    if layout is None:
        raise SinkLayoutChanged(
            f"The sink {closed.sink!r} was written by one writer, and is now opened with {requested.groups} groups.",
            rule="A sink cannot change between atomic and parallel mode.",
            remedy="Start it without groups as before, or name a new sink.",
            sink=closed.sink,
        )
    positions: dict[int, QueryPosition] = {
        group: groups[group].ends if group in groups else closed.ends for group in range(layout.groups)
    }
    _check_groups_not_behind(closed, positions)
    ahead = {group for group, position in positions.items() if not is_same(position, closed.ends)}
    close_first = None
    if len(ahead) == layout.groups and all(is_same(position, positions[0]) for position in positions.values()):
        close_first, ahead = groups[0], set()
    if not ahead:
        changed = requested._replace(version=layout.version) != layout
        chosen = check_layout(requested)._replace(version=layout.version + changed)
        return GroupStart(chosen, close_first, ())
    if requested._replace(version=layout.version) != layout:
        raise SinkLayoutChanged(
            f"Groups {sorted(ahead)} of the sink {closed.sink!r} are ahead of the others, and its layout would change "
            f"from {layout} to {requested}.",
            rule="Rows stay in their groups until all groups are at the same position; else rows are lost or doubled.",
            remedy=f"Start it with {layout.groups} groups and {layout.partitions} partitions; change the layout after "
            "the next batch.",
            sink=closed.sink,
            layout=tuple(layout),
            wanted=tuple(requested),
        )
    if closed.is_stateful and query_id is not None and any(groups[group].query_id != query_id for group in ahead):
        raise SinkGroupsUnequal(
            f"Groups {sorted(ahead)} of the sink {closed.sink!r} are ahead of the others, and the query "
            f"{query_id!r} is not the one that wrote them.",
            rule="Another query may emit the windows of this batch differently, and some groups have written them.",
            remedy="Start the query with the checkpoint of the query that wrote them.",
            sink=closed.sink,
            groups=sorted(ahead),
        )
    return GroupStart(layout, None, _group_stops(closed, [positions[group] for group in sorted(ahead)]))


def _group_stops(closed: Progress, ahead: list[QueryPosition]) -> tuple[BatchStop, ...]:
    """Return the ends of the batches that only some groups have written; with state there is one such batch."""
    positions: list[QueryPosition] = []
    for position in sorted(ahead, key=lambda position: [offset.ts or 0 for _, offset in sorted(position.items())]):
        if not any(is_same(position, other) for other in positions):
            positions.append(position)
    return (
        BatchStop(closed.ends, in_one=False),
        *(BatchStop(position, in_one=closed.is_stateful) for position in positions),
    )


def _check_groups_not_behind(closed: Progress, positions: Mapping[int, QueryPosition]) -> None:
    behind = [group for group, position in positions.items() if not is_at_most(closed.ends, position)]
    ends = [position for group, position in positions.items() if not is_same(position, closed.ends)]
    # Without state, each group skips its own written rows, so groups may be anywhere after the closed record.
    if behind or (closed.is_stateful and any(not is_same(position, ends[0]) for position in ends)):
        raise SinkGroupsUnequal(
            f"Groups of the sink {closed.sink!r} are at "
            f"{ {group: position_timestamps(position) for group, position in positions.items()} }, the closed record "
            f"at {position_timestamps(closed.ends)}.",
            rule="A batch begins only after all groups have written the one before it.",
            remedy="Find the other program that writes to the progress topic, and revoke its write permission.",
            sink=closed.sink,
            groups=behind,
        )
