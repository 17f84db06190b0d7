"""What a sink does when it starts: it begins, goes on, or refuses. A pure rule, over what was found."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from floodmark.bindings import BindingSource
from floodmark.errors import (
    FloodmarkError,
    SinkBindingsMissing,
    SinkProgressMissing,
    SinkTopicMissing,
    SinkVersionOld,
)
from floodmark.sinks._progress import Progress

OnMissingBindings = Literal["error", "nonce"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What can be read of a source: [since, upper), where `origin` was the first timestamp there ever was."""

    origin: int
    since: int
    upper: int

    @classmethod
    def of(cls, source: BindingSource) -> "Bounds":
        """Return those of a source."""
        return cls(source.origin, source.since, source.upper)


BoundsOf = Callable[[Iterable[str]], Mapping[str, Bounds]]
"""Tells what can be read of sources; those without bindings are left out."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a sink has found when it started, after it had fenced those before it."""

    sink: str
    version: int
    topic: str
    topic_id: str | None
    """That of the topic by now; None if there is none."""
    has_records: bool
    """Whether the topic has any record that is committed."""
    progress: Progress | None
    bounds: Mapping[str, Bounds]
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
    found: Found,
    *,
    append: bool = False,
    on_missing_bindings: OnMissingBindings = "error",
    nonce: str = "",
) -> Start:
    """Return how a sink starts, or refuse it.

    `append` lets it begin in a topic that has records. With `on_missing_bindings="nonce"` it begins in a topic of its
    own, whose name has the `nonce`, where it cannot know what it has written.

    >>> decide_start(Found("out", 1, "orders", None, False, None, {}))
    Begin(topic='orders')
    >>> decide_start(Found("out", 1, "orders", "t1", True, None, {}))
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
            remedy=_anew(found),
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


def needed_from(progress: Progress, source: str) -> int | None:
    """Return the first timestamp of a source that a sink may have to tell from those before; None if there is none.

    A query that builds its state anew must end a batch where the last written one began. Where that is before the first
    row, it begins there.
    """
    start, end = progress.starts[source].ts, progress.ends[source].ts
    return start if progress.is_stateful and start is not None else end


def _anew(found: Found) -> str:
    if found.noun == "topic":
        return "Name a new sink with a topic of its own, or delete the topic and its progress topic."
    return f"Name a new sink with a {found.noun} of its own, or delete the {found.noun} and drop the sink."


def _check_bounds(found: Found, progress: Progress) -> None:
    for source in sorted(progress.ends):
        bounds, needed, written = found.bounds.get(source), needed_from(progress, source), progress.ends[source].ts
        if bounds is None:
            raise SinkBindingsMissing(
                f"No persisted timestamp bindings for {source!r}, refusing to append to {progress.topic!r}.",
                rule="A sink knows by the timestamps of its sources what it has written.",
                remedy=f"Open the home that has them. {_anew(found)}",
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
                remedy=f"A sink's hold prevents this; see who released it. {_anew(found)}",
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
                remedy=f"The home may be an older copy: open the newest. {_anew(found)}",
                source=source,
                topic=progress.topic,
                upper=bounds.upper,
                written=written,
            )
