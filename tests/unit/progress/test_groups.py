"""Two levels of merging: the scenarios of delivery that concern it, and the laws that tie it to one level."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import FloodmarkError
from floodmark.progress import IDLE, Coalescer, GroupedCoalescer, Revived, Watermark
from support.merging_script import KEY, show


def play(edges: GroupedCoalescer, action: str) -> str:
    group, name, what = action.split()
    if what == "idle":
        found = edges.idle(group, name)
    elif what == "done":
        found = edges.finish(group, name)
    elif what == "remove":
        found = edges.remove(group, name)
    elif what == "event":
        found = edges.event(group, name)
    else:
        key, _, time = what.rpartition("=")
        found = edges.watermark(group, name, key or KEY, int(time))
    return f"{show(found.within)} / {show(found.merged)}"


# Behind the arrow: what the edge says, then what all edges say.
SCENARIOS = {
    "C02": "e0 q 100 -> 100 / - | e1 q 99 -> 99 / 99",
    "C03": "e0 q k42=100 -> k42=100 / - | e1 q k43=100 -> k43=100 / -",
    "C05": "e0 q idle -> IDLE / - | e1 q idle -> IDLE / IDLE | e0 q 100 -> 100 / 100 | e1 q 101 -> 101 / -",
    "C06": "e0 q 100 -> 100 / - | e1 q idle -> IDLE / 100 | e1 q 101 -> 101 / - | e0 q 102 -> 102 / 101",
    "one-level-waits-within": "e0 q 5 -> 5 / - | e1 q 9 -> 9 / 5 | e0 q done -> - / 9",
    "finished-is-not-idle": "e0 q 5 -> 5 / - | e0 q done -> - / - | e1 q 3 -> 3 / 3 | e1 q done -> - / -",
    "an-event-wakes-the-edge": "e0 q 5 -> 5 / - | e0 q idle -> IDLE / - | e0 q event | e1 q 9 -> 9 / 5",
}


@pytest.mark.parametrize("script", SCENARIOS.values(), ids=SCENARIOS)
def test_two_edges_of_one_queue(script: str) -> None:
    edges = GroupedCoalescer({"e0": ["q"], "e1": ["q"]})
    for step in script.split("|"):
        action, _, expected = (part.strip() for part in step.partition("->"))
        edges = GroupedCoalescer.restore(json.loads(json.dumps(edges.snapshot())))
        assert play(edges, action) == (expected or "- / -"), action


def test_c01_one_edge_says_what_it_heard_on_both_levels() -> None:
    edges = GroupedCoalescer({"e0": ["q"]})
    edges.event("e0", "q")
    assert play(edges, "e0 q 123") == "123 / 123"


def test_c09_a_queue_that_is_idle_does_not_hold_its_edge() -> None:
    edges = GroupedCoalescer({"e0": ["q1", "q2"]})
    edges.idle("e0", "q2")
    edges.event("e0", "q1")
    assert play(edges, "e0 q1 2") == "2 / 2"


def test_the_top_of_an_edge_passes_on_when_its_queues_are_all_idle() -> None:
    edges = GroupedCoalescer({"e0": ["q0", "q1"], "e1": ["q0"]})
    script = ["e0 q0 5", "e0 q1 9", "e1 q0 20", "e0 q1 idle", "e0 q0 idle", "e1 q0 21", "e0 q1 event", "e1 q0 30"]
    assert [play(edges, step) for step in script] == [
        "- / -", "5 / -", "20 / 5", "- / -", "9, IDLE / 9, 20", "21 / 21", "- / -", "30 / -",
    ]  # fmt: skip


def test_a_watermark_wakes_its_edge_even_if_the_edge_has_nothing_new_to_say() -> None:
    edges = GroupedCoalescer({"e0": ["q0", "q1"], "e1": ["q0"]})
    script = ["e0 q0 5", "e0 q1 9", "e0 q0 idle", "e0 q1 idle", "e0 q0 6", "e1 q0 20"]
    assert [play(edges, step) for step in script][-2:] == ["- / -", "20 / 9"]


def test_an_edge_that_has_finished_stays_so_when_its_queues_are_removed() -> None:
    edges = GroupedCoalescer({"e0": ["q0", "q1"], "e1": ["q0"]})
    script = ["e0 q0 done", "e0 q1 done", "e0 q0 remove", "e0 q1 remove", "e1 q0 3"]
    assert [play(edges, step) for step in script][-2:] == ["- / -", "3 / 3"]


# The queues of edge e and the edges a, b and c: the first two events make laggards, the last one releases.
RELEASES = {
    "within": (
        {"e": ["a", "b", "c"]},
        "e a 20 | e b 10 | e c 12 | e a idle | e b idle | e b event | e c idle | e a event -> 20 / 20",
    ),
    "merged": (
        {"a": ["q"], "b": ["q"], "c": ["q"]},
        "a q 20 | b q 10 | c q 12 | a q idle | b q idle | b q event | c q idle | a q event -> - / 20",
    ),
    "merged, by another key": (
        {"a": ["q"], "b": ["q"], "c": ["q"]},
        "a q 20 | b q 10 | c q 12 | a q idle | b q idle | b q event | c q idle | a q k1=1 -> k1=1 / 20",
    ),
    "merged, by a watermark that the edge waits with": (
        {"a": ["q", "r"], "b": ["q"], "c": ["q"]},
        "a q 20 | a r 21 | b q 10 | c q 12 | a q idle | a r idle | b q idle | b q event | c q idle |"
        "a r k1=1 -> k1=1 / 21",
    ),
}


@pytest.mark.parametrize(("groups", "script"), RELEASES.values(), ids=RELEASES)
def test_an_edge_that_comes_back_releases_what_it_allows(groups: dict[str, list[str]], script: str) -> None:
    edges = GroupedCoalescer(groups, revived="exclude")  # type: ignore[arg-type]
    for step in script.split("|"):
        action, _, expected = (part.strip() for part in step.partition("->"))
        found = play(edges, action)
        assert not expected or found == expected, action


def test_a_new_queue_wakes_its_edge_and_releases_what_it_allows() -> None:
    edges = GroupedCoalescer({"a": ["q"], "b": ["q"], "c": ["q"]}, revived="exclude")
    for step in ["a q 20", "b q 10", "c q 12", "a q idle", "b q idle", "b q event", "c q idle"]:
        play(edges, step)
    assert edges.add("a", "r").merged == (Watermark(KEY, 20),)


def test_queues_and_edges_come_and_go() -> None:
    edges = GroupedCoalescer({"e0": ["q0"]})
    edges.add("e0", "q1")
    edges.add_group("e1", ["q0"])
    assert play(edges, "e0 q0 5") == "- / -"
    assert play(edges, "e0 q1 remove") == "5 / -"
    assert edges.remove_group("e1").merged == (Watermark(KEY, 5),)
    assert play(edges, "e0 q0 done") == "- / -"
    assert play(edges, "e0 q0 remove") == "- / -"


def test_a_dropped_key_is_dropped_on_both_levels_and_in_groups_to_come() -> None:
    edges = GroupedCoalescer({"e0": ["q0"]})
    edges.drop_watermark("k9")
    edges.add_group("e1", ["q0"])
    assert play(edges, "e0 q0 k9=1") == "- / -"
    assert play(edges, "e1 q0 k9=1") == "- / -"
    assert edges.partial_keys() == {}


REFUSED = {
    "unknown group": lambda edges: edges.watermark("e9", "q", KEY, 1),
    "unknown input": lambda edges: edges.watermark("e0", "q9", KEY, 1),
    "group twice": lambda edges: edges.add_group("e0", []),
    "group finished": lambda edges: (edges.finish("e1", "q"), edges.add("e1", "q2")),
    "unknown group removed": lambda edges: edges.remove_group("e9"),
    "not rising": lambda edges: (edges.watermark("e0", "q", KEY, 1), edges.watermark("e0", "q", KEY, 1)),
    "version": lambda edges: GroupedCoalescer.restore(edges.snapshot() | {"version": 0}),
}


@pytest.mark.parametrize("action", REFUSED.values(), ids=REFUSED)
def test_bad_input_is_refused(action: object) -> None:
    with pytest.raises(FloodmarkError):
        action(GroupedCoalescer({"e0": ["q"], "e1": ["q"]}))  # type: ignore[operator]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.one_of(st.sampled_from(["idle", "event", "done"]), st.integers(0, 20).map(str)),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from(["hold", "exclude"]))
def test_groups_of_one_merge_like_inputs(steps: list[tuple[str, str]], revived: Revived) -> None:
    grouped = GroupedCoalescer({name: ["only"] for name in "abc"}, revived=revived, not_rising="ignore")
    flat = Coalescer("abc", revived=revived, not_rising="ignore")
    for name, what in steps:
        if flat.state_of(name) == "finished":
            continue
        if what == "event":
            assert grouped.event(name, "only").merged == flat.event(name)
        elif what == "idle":
            assert grouped.idle(name, "only").merged == flat.idle(name)
        elif what == "done":
            assert grouped.finish(name, "only").merged == flat.finish(name)
        else:
            found = grouped.watermark(name, "only", KEY, int(what))
            assert found.merged == flat.watermark(name, KEY, int(what))


@given(STEPS, st.sampled_from(["hold", "exclude"]))
def test_one_group_merges_like_its_inputs(steps: list[tuple[str, str]], revived: Revived) -> None:
    grouped = GroupedCoalescer({"edge": "abc"}, revived=revived, not_rising="ignore")
    flat = Coalescer("abc", revived=revived, not_rising="ignore")
    for name, what in steps:
        if flat.state_of(name) == "finished":
            continue
        if what == "event":
            found, expected = grouped.event("edge", name), flat.event(name)
        elif what == "idle":
            found, expected = grouped.idle("edge", name), flat.idle(name)
        elif what == "done":
            found, expected = grouped.finish("edge", name), flat.finish(name)
        else:
            found = grouped.watermark("edge", name, KEY, int(what))
            expected = flat.watermark(name, KEY, int(what))
        assert found.within == expected
        assert found.merged == expected
        assert grouped.is_idle == (flat.is_idle if IDLE in expected else grouped.is_idle)
