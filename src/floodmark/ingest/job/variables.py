"""Variables: `{{name}}` in the texts of a job, and what each stands for.

| written | stands for |
|---|---|
| `{{region}}` | a variable of the job's own table [variables] |
| `{{job.name}}`, `{{job.zone}}`, `{{job.dir}}` | the job itself; `dir` is the folder of its file |
| `{{env.NAME}}` | a variable of the environment (a secret is referred to as env:NAME instead) |
| `{{preceding.name}}`, `{{preceding.zone}}`, `{{preceding.table}}` | the preceding job, and the table it lands |
| `{{preceding.region}}` | a variable of the preceding job |
| `{{range.from}}`, `{{range.to}}`, `{{unit.id}}` | the cell that is extracted; known only then, and only in [source] |
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from floodmark._util.text import did_you_mean
from floodmark.errors import JobFileInvalid, UnknownVariable

_REFERENCE: Final = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_LOOSE: Final = re.compile(r"\{\{|\}\}")
_SHELL: Final = re.compile(r"\$\{([^{}]*)\}")
_SHOWN: Final = 8

Scalar = str | int | float | bool


def variable_names(text: str) -> tuple[str, ...]:
    """Return the variables that a text names, in order.

    >>> variable_names("/{{region}}/{{ job.name }}")
    ('region', 'job.name')
    """
    return tuple(match[1] for match in _REFERENCE.finditer(text))


def substitute_variables(
    text: str,
    known: Mapping[str, Scalar],
    *,
    is_late: Callable[[str], bool] = lambda name: False,
) -> Scalar:
    """Return a text with its variables in place; one that is nothing but a variable becomes its value, of its type.

    Names for which `is_late` holds stay as they are: what they stand for is known when a cell is extracted.

    >>> substitute_variables("/landed/{{region}}", {"region": "eu"}), substitute_variables("{{days}}", {"days": 3})
    ('/landed/eu', 3)
    >>> substitute_variables("/landed/{{regoin}}", {"region": "eu"})
    Traceback (most recent call last):
    floodmark.errors.UnknownVariable: There is no variable 'regoin'. ... Did you mean 'region'? [unknown-variable]
    """
    _refuse_loose(text)

    def value(match: re.Match[str]) -> Scalar:
        return match[0] if is_late(match[1]) else _lookup(match[1], known)

    whole = _REFERENCE.fullmatch(text.strip())
    return value(whole) if whole else _REFERENCE.sub(lambda match: _written(value(match)), text)


def substitute_shell_variables(text: str, known: Mapping[str, Scalar]) -> str:
    """Return a text with `${name}` replaced, as properties files write it; twice where a value names another.

    >>> substitute_shell_variables("${job.dir}/${table}", {"job.dir": "/data", "table": "ids"})
    '/data/ids'
    """
    for _ in range(_SHOWN):
        if not _SHELL.search(text):
            return text
        text = _SHELL.sub(lambda match: _written(_lookup(match[1].strip(), known)), text)
    raise UnknownVariable(
        "Variables of the file name each other in a circle.",
        rule="What a variable stands for does not lead back to it.",
        remedy="Write one of them out.",
    )


def expand_variables(
    value: Any,
    known: Mapping[str, Scalar],
    *,
    is_late: Callable[[str], bool] = lambda name: False,
    at: tuple[str | int, ...] = (),
    locate: Callable[[UnknownVariable | JobFileInvalid, tuple[str | int, ...]], Exception] | None = None,
) -> Any:
    """Return a tree of tables and lists with the variables of all its texts in place.

    `locate` gets an error and the path of the text it is about, and returns the error to raise.

    >>> expand_variables({"paths": ["/{{region}}/a", "/b"], "n": 1}, {"region": "eu"})
    {'paths': ['/eu/a', '/b'], 'n': 1}
    """
    if isinstance(value, dict):
        return {
            key: expand_variables(one, known, is_late=is_late, at=(*at, key), locate=locate)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [
            expand_variables(one, known, is_late=is_late, at=(*at, n), locate=locate) for n, one in enumerate(value)
        ]
    if not isinstance(value, str):
        return value
    try:
        return substitute_variables(value, known, is_late=is_late)
    except (UnknownVariable, JobFileInvalid) as error:
        raise (error if locate is None else locate(error, at)) from error


def is_cell_variable(name: str) -> bool:
    """Return whether a variable is one that only a cell gives a value.

    >>> is_cell_variable("range.from"), is_cell_variable("unit.id"), is_cell_variable("region")
    (True, True, False)
    """
    return name in ("range.from", "range.to") or name.startswith("unit.")


def environment_variables(variables: Mapping[str, str]) -> dict[str, Scalar]:
    """Return the environment under the names that a job uses.

    >>> environment_variables({"STAGE": "test"})
    {'env.STAGE': 'test'}
    """
    return {f"env.{name}": value for name, value in variables.items()}


def _lookup(name: str, known: Mapping[str, Scalar]) -> Scalar:
    if name in known:
        return known[name]
    raise UnknownVariable(
        f"There is no variable {name!r}.",
        rule="A variable is one of [variables], of the environment as env.NAME, or of a preceding job.",
        remedy=did_you_mean(name, known, otherwise=_choice(name, known)),
        variable=name,
    )


def _choice(name: str, known: Iterable[str]) -> str:
    if name.startswith("env."):
        return f"Set the variable {name.removeprefix('env.')} of the environment."
    if is_cell_variable(name):
        return "It is known when a cell is extracted, and can stand in [source] only."
    own = [one for one in known if not one.startswith("env.")]
    return f"There are {', '.join(own[:_SHOWN])}." if own else "Add it to [variables]."


def _refuse_loose(text: str) -> None:
    rest = _REFERENCE.sub("", text)
    if _LOOSE.search(rest) or "" in variable_names(text):
        raise JobFileInvalid(
            f"The text {text!r} has braces that name no variable.",
            rule="A variable is written {{name}}, and two braces in a row mean nothing else.",
            remedy="Close the braces around a name, or put a space between them.",
        )


def _written(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
