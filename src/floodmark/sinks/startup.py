"""How a sink starts: it begins, resumes, or refuses. Pure rules over what was found, for one writer and for groups."""

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
from floodmark.sinks.progress import GroupLayout, Progress, check_layout, first_needed_timestamp

OnMissingBindings = Literal["error", "nonce"]


@dataclass(frozen=True, slots=True)
class SourceBounds:
    """What can be read of a source: [since, upper), where `origin` was the first timestamp there ever was."""

    origin: int
    since: int
    upper: int

    @classmethod
    def of(cls, source: BindingSource) -> "SourceBounds":
        """Return those of a source."""
        return cls(source.origin, source.since, source.upper)


BoundsLookup = Callable[[Iterable[str]], Mapping[str, SourceBounds]]
"""Tells what can be read of sources; those without bindings are left out."""


@dataclass(frozen=True, slots=True)
class StartupState:
    """What a sink has found when it started, after it had fenced those before it."""

    sink: str
    version: int
    topic: str
    topic_id: str | None
    """That of the topic by now; None if there is none."""
    has_records: bool
    """Whether the topic has any record that is committed."""
    progress: Progress | None
    bounds: Mapping[str, SourceBounds]
    """Of each source that has bindings."""
    noun: str = "topic"
    """What the target is, to a person."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Nothing was written: the first batch may begin anywhere."""

    topic: str


@dataclass(frozen=True, slots=True)
class Resume:
    """What comes after `progress` is to be written."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class BeginElsewhere:
    """The topic stays as it is; a new one is written from the beginning, and `reason` says why."""

    topic: str
    reason: FloodmarkError


Start = Begin | Resume | BeginElsewhere


def decide_start(
    found: StartupState,
    *,
    append: bool = False,
    on_missing_bindings: OnMissingBindings = "error",
    nonce: str = "",
) -> Start:
    """Return how a sink starts, or refuse it.

    `append` lets it begin in a topic that has records. With `on_missing_bindings="nonce"` it begins in a topic of its
    own, whose name has the `nonce`, where it cannot know what it has written.

    >>> decide_start(StartupState("out", 1, "orders", None, False, None, {}))
    Begin(topic='orders')
    >>> decide_start(StartupState("out", 1, "orders", "t1", True, None, {}))
    Traceback (most recent call last):
    floodmark.errors.SinkProgressMissing: The topic 'orders' has records, and no progress of ... [sink-progress-missing]
    """
    progress = found.progress
    if progress is None:
        if found.has_records and not append:
            raise SinkProgressMissing(
                f"The {found.noun} {found.topic!r} has records, and no progress of the sink {found.sink!r} is known.",
                rule="A sink does not append to what it may have written itself: it could repeat rows.",
                remedy="If the records are of others, or may be repeated, say append=True; else name another "
                f"{found.noun}.",
                sink=found.sink,
                topic=found.topic,
            )
        return Begin(found.topic)
    if found.version < progress.version:
        raise SinkVersionOld(
            f"The sink {found.sink!r} was fenced off by a newer version: ours={found.version} "
            f"theirs={progress.version}.",
            rule="What a newer version has begun no older one goes on with.",
            remedy="Stop this program, or start its newer version.",
            sink=found.sink,
            ours=found.version,
            theirs=progress.version,
        )
    if found.topic_id is None or found.topic_id != progress.topic_id:
        gone = "is gone" if found.topic_id is None else "was deleted and made anew"
        raise SinkTopicMissing(
            f"The sink {found.sink!r} has written {progress.total} rows to the {found.noun} {progress.topic!r}, "
            f"which {gone}.",
            rule="A sink goes on behind what it has written.",
            remedy=_begin_anew_remedy(found),
            sink=found.sink,
            topic=progress.topic,
            rows=progress.total,
        )
    try:
        _check_bounds(found, progress)
    except SinkBindingsMissing as reason:
        if on_missing_bindings == "nonce":
            return BeginElsewhere(f"{found.topic}-{found.sink}-{nonce}", reason)
        raise
    return Resume(progress)


def topic_in_use(topic: str, sink: str, progress: Progress | None) -> str:
    """Return the topic that a sink for `topic` writes to: that of its progress, which may be one of its own.

    >>> topic_in_use("orders", "out", None)
    'orders'
    """
    if progress is None or progress.topic == topic or progress.topic.startswith(f"{topic}-{sink}-"):
        return topic if progress is None else progress.topic
    raise SinkTopicMissing(
        f"The sink {sink!r} has written to the topic {progress.topic!r}, and is now to write to {topic!r}.",
        rule="What was written is known by the name of the sink: it has one topic.",
        remedy="Name the topic as before, or name a new sink.",
        sink=sink,
        topic=topic,
        written=progress.topic,
    )


def _begin_anew_remedy(found: StartupState) -> str:
    if found.noun == "topic":
        return "Name a new sink with a topic of its own, or delete the topic and its progress topic."
    return f"Name a new sink with a {found.noun} of its own, or delete the {found.noun} and drop the sink."


def _check_bounds(found: StartupState, progress: Progress) -> None:
    for source in sorted(progress.ends):
        bounds, needed, written = (
            found.bounds.get(source),
            first_needed_timestamp(progress, source),
            progress.ends[source].ts,
        )
        if bounds is None:
            raise SinkBindingsMissing(
                f"No persisted timestamp bindings for {source!r}, refusing to append to {progress.topic!r}.",
                rule="A sink knows by the timestamps of its sources what it has written.",
                remedy=f"Open the home that has them. {_begin_anew_remedy(found)}",
                source=source,
                topic=progress.topic,
            )
        is_compacted = bounds.since > bounds.origin
        if is_compacted and needed is not None and bounds.since >= needed:
            raise SinkBindingsMissing(
                f"The source {source!r} is compacted past what the sink {found.sink!r} needs: its since is "
                f"{bounds.since}, and timestamps from {needed} on are needed; refusing to append to "
                f"{progress.topic!r}.",
                rule="Below since timestamps cannot be told apart any more.",
                remedy=f"A sink's hold prevents this; see who released it. {_begin_anew_remedy(found)}",
                source=source,
                topic=progress.topic,
                since=bounds.since,
                needed=needed,
            )
        if written is not None and written >= bounds.upper:
            raise SinkBindingsMissing(
                f"The sink {found.sink!r} has written {source!r} up to {written}, and its bindings end at "
                f"{bounds.upper}; refusing to append to {progress.topic!r}.",
                rule="What was written was bound before.",
                remedy=f"The home may be an older copy: open the newest. {_begin_anew_remedy(found)}",
                source=source,
                topic=progress.topic,
                upper=bounds.upper,
                written=written,
            )


@dataclass(frozen=True, slots=True)
class GroupStart:
    """How a sink of several groups starts."""

    layout: GroupLayout
    """The one to be used: with the version that follows, if it has changed."""
    close_first: Progress | None
    """What all groups have written, and the closed record does not say yet."""
    stops: tuple[BatchStop, ...]
    """Where batches must end before all groups are equal."""

    def is_change(self, closed: Progress) -> bool:
        """Return whether rows will go to other groups than before."""
        return self.layout != closed.layout


def decide_group_start(
    closed: Progress,
    groups: Mapping[int, Progress],
    *,
    wanted: GroupLayout,
    query_id: str | None = None,
) -> GroupStart:
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
    places: dict[int, QueryPosition] = {
        group: groups[group].ends if group in groups else closed.ends for group in range(layout.groups)
    }
    _check_groups_not_behind(closed, places)
    ahead = {group for group, place in places.items() if not is_same(place, closed.ends)}
    close_first = None
    if len(ahead) == layout.groups and all(is_same(place, places[0]) for place in places.values()):
        close_first, ahead = groups[0], set()
    if not ahead:
        changed = wanted._replace(version=layout.version) != layout
        chosen = check_layout(wanted)._replace(version=layout.version + changed)
        return GroupStart(chosen, close_first, ())
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
    return GroupStart(layout, None, _group_stops(closed, [places[group] for group in sorted(ahead)]))


def _group_stops(closed: Progress, ahead: list[QueryPosition]) -> tuple[BatchStop, ...]:
    """Return where batches end that some groups have written; with state there is one such batch."""
    places: list[QueryPosition] = []
    for place in sorted(ahead, key=lambda place: [offset.ts or 0 for _, offset in sorted(place.items())]):
        if not any(is_same(place, other) for other in places):
            places.append(place)
    return (BatchStop(closed.ends, in_one=False), *(BatchStop(place, in_one=closed.is_stateful) for place in places))


def _check_groups_not_behind(closed: Progress, places: Mapping[int, QueryPosition]) -> None:
    behind = [group for group, place in places.items() if not is_at_most(closed.ends, place)]
    ends = [place for group, place in places.items() if not is_same(place, closed.ends)]
    # Rows without state are gated one by one, and so groups may be anywhere beyond what is closed.
    if behind or (closed.is_stateful and any(not is_same(place, ends[0]) for place in ends)):
        raise SinkGroupsUnequal(
            f"Groups of the sink {closed.sink!r} are at "
            f"{ {group: _ts_of(place) for group, place in places.items()} }, and {_ts_of(closed.ends)} is closed.",
            rule="A batch begins when all groups have written the one before it.",
            remedy="Look for another program that writes to the progress topic.",
            sink=closed.sink,
            groups=behind,
        )


def _ts_of(place: QueryPosition) -> dict[str, int | None]:
    return {source: offset.ts for source, offset in sorted(place.items())}
