"""Variables: `{{name}}` in the strings of a job, and their values.

| variable | value |
|---|---|
| `{{region}}` | an entry of [variables] |
| `{{job.name}}`, `{{job.zone}}`, `{{job.dir}}` | the job itself; `dir` is the folder of its file |
| `{{env.NAME}}` | an environment variable (for a secret, use env:NAME instead) |
| `{{preceding.name}}`, `{{preceding.zone}}`, `{{preceding.table}}` | the preceding job, and its table |
| `{{preceding.region}}` | a variable of the preceding job |
| `{{range.from}}`, `{{range.to}}`, `{{unit.id}}` | the current cell; only in [source] |
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from floodmark._util.text import did_you_mean
from floodmark.errors import JobFileInvalid, UnknownVariable

_REFERENCE: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_STRAY_BRACES: Final = re.compile(r"\{\{|\}\}")
_SHELL: Final = re.compile(r"\$\{([^{}]*)\}")
_MOST_LISTED: Final = 8
_MOST_PASSES: Final = 8

Scalar = str | int | float | bool


def variable_names(text: str) -> tuple[str, ...]:
    """Return the names of the variables in a string, in order.

    >>> variable_names("/{{region}}/{{ job.name }}")
    ('region', 'job.name')
    """
    return tuple(match[1] for match in _REFERENCE.finditer(text))


def substitute_variables(
    text: str,
    variables: Mapping[str, Scalar],
    *,
    is_late: Callable[[str], bool] = lambda name: False,
) -> Scalar:
    """Substitute the variables of a string; a string that is only a variable becomes the value, with its type.

    Variables for which `is_late` returns true are kept: they get their values when a cell is extracted.

    >>> substitute_variables("/landed/{{region}}", {"region": "eu"}), substitute_variables("{{days}}", {"days": 3})
    ('/landed/eu', 3)
    >>> substitute_variables("/landed/{{regoin}}", {"region": "eu"})
    Traceback (most recent call last):
    floodmark.errors.UnknownVariable: There is no variable 'regoin'. ... Did you mean 'region'? [unknown-variable]
    """
    _refuse_stray_braces(text)

    def value(match: re.Match[str]) -> Scalar:
        return match[0] if is_late(match[1]) else _lookup(match[1], variables)

    whole = _REFERENCE.fullmatch(text.strip())
    return value(whole) if whole else _REFERENCE.sub(lambda match: _as_text(value(match)), text)


def substitute_shell_variables(text: str, variables: Mapping[str, Scalar]) -> str:
    """Substitute `${name}` as in properties files, repeatedly where a value contains another variable.

    >>> substitute_shell_variables("${job.dir}/${table}", {"job.dir": "/data", "table": "ids"})
    '/data/ids'
    """
    for _ in range(_MOST_PASSES):
        if not _SHELL.search(text):
            return text
        text = _SHELL.sub(lambda match: _as_text(_lookup(match[1].strip(), variables)), text)
    raise UnknownVariable(
        "Variables of the file refer to each other in a cycle.",
        rule="The value of a variable must not depend on the variable itself.",
        remedy="Replace one of the references with its value.",
    )


def expand_variables(
    value: Any,
    variables: Mapping[str, Scalar],
    *,
    is_late: Callable[[str], bool] = lambda name: False,
    at: tuple[str | int, ...] = (),
    locate: Callable[[UnknownVariable | JobFileInvalid, tuple[str | int, ...]], Exception] | None = None,
) -> Any:
    """Substitute the variables in all strings of a tree of tables and lists.

    `locate` takes an error and the path of the string, and returns the error to raise.

    >>> expand_variables({"paths": ["/{{region}}/a", "/b"], "n": 1}, {"region": "eu"})
    {'paths': ['/eu/a', '/b'], 'n': 1}
    """
    if isinstance(value, dict):
        return {
            key: expand_variables(item, variables, is_late=is_late, at=(*at, key), locate=locate)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            expand_variables(item, variables, is_late=is_late, at=(*at, index), locate=locate)
            for index, item in enumerate(value)
        ]
    if not isinstance(value, str):
        return value
    try:
        return substitute_variables(value, variables, is_late=is_late)
    except (UnknownVariable, JobFileInvalid) as error:
        raise (error if locate is None else locate(error, at)) from error


def is_cell_variable(name: str) -> bool:
    """Return whether a variable gets its value from the current cell.

    >>> is_cell_variable("range.from"), is_cell_variable("unit.id"), is_cell_variable("region")
    (True, True, False)
    """
    return name in ("range.from", "range.to") or name.startswith("unit.")


def environment_variables(environment: Mapping[str, str]) -> dict[str, Scalar]:
    """Return environment variables by the names that job files use.

    >>> environment_variables({"STAGE": "test"})
    {'env.STAGE': 'test'}
    """
    return {f"env.{name}": value for name, value in environment.items()}


def _lookup(name: str, variables: Mapping[str, Scalar]) -> Scalar:
    if name in variables:
        return variables[name]
    raise UnknownVariable(
        f"There is no variable {name!r}.",
        rule="A variable is an entry of [variables], env.NAME, or a variable of the preceding job.",
        remedy=did_you_mean(name, variables, otherwise=_variable_hint(name, variables)),
        variable=name,
    )


def _variable_hint(name: str, variables: Iterable[str]) -> str:
    if name.startswith("env."):
        return f"Set the environment variable {name.removeprefix('env.')}."
    if is_cell_variable(name):
        return "Use it in [source] only: it has a value only while a cell is extracted."
    own = [other for other in variables if not other.startswith("env.")]
    return f"Use one of {', '.join(own[:_MOST_LISTED])}, or add it to [variables]." if own else "Add it to [variables]."


def _refuse_stray_braces(text: str) -> None:
    rest = _REFERENCE.sub("", text)
    if _STRAY_BRACES.search(rest) or "" in variable_names(text):
        raise JobFileInvalid(
            f"The string {text!r} has double braces that enclose no variable.",
            rule="Double braces are only for variables: {{name}}.",
            remedy="Close the braces around a name, or put a space between two braces.",
        )


def _as_text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
