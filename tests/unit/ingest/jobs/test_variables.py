"""Claims about variables: each is replaced, and one that nobody knows is refused."""

import pytest

from floodmark.errors import JobFileInvalid, UnknownVariable
from floodmark.ingest.job.variables import (
    Scalar,
    environment_variables,
    expand_variables,
    is_cell_variable,
    substitute_shell_variables,
    substitute_variables,
)

KNOWN: dict[str, Scalar] = {
    "region": "eu",
    "days": 3,
    "deep": True,
    "preceding.table": "/landed/ids",
    "env.STAGE": "test",
}

TEXTS: dict[str, tuple[str, Scalar]] = {
    "none": ("plain {text} }", "plain {text} }"),
    "one within": ("/{{region}}/x", "/eu/x"),
    "blanks": ("/{{  region }}/x", "/eu/x"),
    "several": ("{{env.STAGE}}-{{region}}", "test-eu"),
    "of a preceding job": ("{{preceding.table}}", "/landed/ids"),
    "a whole text keeps the type": (" {{days}} ", 3),
    "a whole text that is true": ("{{deep}}", True),
    "a number within": ("P{{days}}D", "P3D"),
    "a truth within": ("x={{deep}}", "x=true"),
    "a value is not read again": ("{{loop}}", "{{region}}"),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.values(), ids=TEXTS)
def test_variables_are_replaced(text: str, expected: Scalar) -> None:
    assert substitute_variables(text, {**KNOWN, "loop": "{{region}}"}) == expected


UNKNOWN = {
    "misspelled": ("{{regoin}}", "Did you mean 'region'?"),
    "of the environment": ("{{env.NOWHERE}}", "Set the environment variable NOWHERE."),
    "far from any": ("{{zzz}}", "Use one of region, days, deep, preceding.table, or add it to [variables]."),
    "of a cell": ("{{range.from}}", "Use it in [source] only"),
}


@pytest.mark.parametrize(("text", "remedy"), UNKNOWN.values(), ids=UNKNOWN)
def test_an_unknown_variable_is_refused_with_a_guess(text: str, remedy: str) -> None:
    with pytest.raises(UnknownVariable) as caught:
        substitute_variables(f"/x/{text}", KNOWN)
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("text", ["{{region}", "region}}", "{{}}", "{{ }}", "{{a{{b}}"])
def test_braces_that_name_nothing_are_refused(text: str) -> None:
    with pytest.raises(JobFileInvalid, match="braces"):
        substitute_variables(text, KNOWN)


def test_variables_of_a_cell_stay_where_they_may_stand() -> None:
    text = "/{{region}}?from={{range.from}}&id={{unit.id}}"
    assert substitute_variables(text, KNOWN, is_late=is_cell_variable) == "/eu?from={{range.from}}&id={{unit.id}}"


def test_a_tree_is_expanded_and_errors_know_their_path() -> None:
    tree = {"a": ["{{region}}", {"b": "{{days}}"}], "n": 1}
    assert expand_variables(tree, KNOWN) == {"a": ["eu", {"b": 3}], "n": 1}
    paths = []

    def locate(error: Exception, path: tuple[str | int, ...]) -> Exception:
        paths.append(path)
        return error

    with pytest.raises(UnknownVariable):
        expand_variables({"a": ["x", {"b": "{{nobody}}"}]}, KNOWN, locate=locate)
    assert paths == [("a", 1, "b")]


def test_the_environment_has_a_prefix() -> None:
    assert environment_variables({"A": "1"}) == {"env.A": "1"}


def test_variables_of_properties_files_may_name_each_other_but_not_in_a_circle() -> None:
    known: dict[str, Scalar] = {"dir": "/data/${name}", "name": "ids", "a": "${b}", "b": "${a}"}
    assert substitute_shell_variables("${dir}/x", known) == "/data/ids/x"
    with pytest.raises(UnknownVariable, match="cycle"):
        substitute_shell_variables("${a}", known)
    with pytest.raises(UnknownVariable, match="Did you mean 'name'"):
        substitute_shell_variables("${nmae}", known)
