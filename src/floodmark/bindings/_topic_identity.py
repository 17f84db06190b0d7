"""What tells a source of topics from any other: the cluster, the topics and their ids, and by what they tell time."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from floodmark._util.codec import JsonValue
from floodmark.bindings._bindings import Bindings
from floodmark.bindings._partition_times import TimeRule
from floodmark.errors import InvalidOption, SourceRecreated, TopicRecreated

if TYPE_CHECKING:
    from floodmark.kafka import TopicInfo


def default_source(cluster_id: str, topics: Sequence[str], rule: TimeRule, *, committed: bool = True) -> str:
    """Return the id of a source that was given none.

    >>> default_source("Zx3", ["orders", "returns"], TimeRule())
    'kafka:Zx3:orders,returns'
    >>> default_source("Zx3", ["orders"], TimeRule(key="at", is_read=True), committed=False)
    'kafka:Zx3:orders:at:uncommitted'
    """
    time = [rule.key] if rule.is_read or rule.key != TimeRule().key else []
    return ":".join(["kafka", cluster_id, ",".join(topics), *time, *([] if committed else ["uncommitted"])])


def identity_of(cluster_id: str, topics: "Iterable[TopicInfo]", rule: TimeRule, *, committed: bool) -> dict[str, Any]:
    """Return what is kept with the bindings, as JSON values."""
    return {
        "cluster": cluster_id,
        "topics": {info.name: info.id for info in topics},
        "time": rule.key,
        "committed": committed,
    }


def register(bindings: Bindings, source: str, identity: JsonValue) -> None:
    """Make topics known as a source, or refuse others than those that are known under its id."""
    try:
        bindings.register(source, kind="kafka", identity=identity)
    except SourceRecreated:
        known = bindings.source(source).identity
        if not isinstance(known, dict) or known.get("topics", {}).keys() != identity["topics"].keys():
            raise
        if known["cluster"] == identity["cluster"] and known["topics"] != identity["topics"]:
            names = [name for name, one in identity["topics"].items() if known["topics"][name] != one]
            raise TopicRecreated(
                f"The topic {names[0]!r} was deleted and made anew since {source!r} was bound.",
                rule="Offsets that were bound mean records of the old topic.",
                remedy="Read the new one under another source id, with a new checkpoint; or drop the source.",
                source=source,
                topic=names[0],
            ) from None
        for name, option in (("time", "timestampColumn"), ("committed", "kafka.isolation.level")):
            before, now = known.get(name), identity[name]
            if before != now:
                raise InvalidOption(
                    f"The source {source!r} was bound with {name} = {before!r}, and now it is {now!r}.",
                    rule="Everybody who reads a source shares its bindings, and so what they are made by.",
                    remedy=f"Give another source id, or the same {option}.",
                    option=option,
                    source=source,
                ) from None
        raise
