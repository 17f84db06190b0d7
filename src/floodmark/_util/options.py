"""Checks of options: a fixed set of values, and unknown option names."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from floodmark._util.text import did_you_mean
from floodmark.errors import FloodmarkError, InvalidOption


def require_one_of(option: str, value: str, allowed: Sequence[str], otherwise: str | None = None) -> None:
    """Raise an error if a value is not among the allowed ones.

    >>> require_one_of("late", "rout", ["drop", "route"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: late is 'rout'. It must be one of 'drop', 'route'. Did you mean ... [invalid-option]
    """
    if value not in allowed:
        raise InvalidOption(
            f"{option} is {value!r}.",
            rule=f"It must be one of {', '.join(map(repr, allowed))}.",
            remedy=did_you_mean(
                str(value), allowed, otherwise=otherwise or f"Omit {option}, or set it to {allowed[0]!r}."
            ),
            option=option,
            value=value,
        )


def refuse_unknown_options(unknown: Mapping[str, object], options: Iterable[str]) -> None:
    """Raise an error if there are unknown options.

    >>> refuse_unknown_options({"idel": "1 minute"}, ["delay", "idle"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: There is no option 'idel'. ... Did you mean 'idle'? [invalid-option]
    """
    names = list(options)
    for option, value in unknown.items():
        raise InvalidOption(
            f"There is no option {option!r}.",
            rule=f"The options are {', '.join(names)}.",
            remedy=did_you_mean(option, names, otherwise=f"Remove {option!r}."),
            option=option,
            value=value,
        )


def require_names(option: str, value: object) -> list[str]:
    """Return a list of names; raise an error for anything else, also for a single string.

    >>> require_names("columns", ("id", "at"))
    ['id', 'at']
    >>> require_names("columns", "id")
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: columns is 'id'. It must be a list of names. Write columns=['id'] ...
    """
    if not isinstance(value, str) and isinstance(value, Iterable):
        names = list(value)
        if names and all(isinstance(name, str) for name in names):
            return names
    example = value if isinstance(value, str) else "id"
    raise InvalidOption(
        f"{option} is {value!r}.",
        rule="It must be a list of names.",
        remedy=f"Write {option}=[{example!r}] for a single one.",
        option=option,
        value=value,
    )


@contextmanager
def rename_options(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors inside the block name options as the caller knows them: {name of the option: name to show}.

    >>> with rename_options({"maxRowsPerTrigger": "max_rows"}):
    ...     require_one_of("maxRowsPerTrigger", "x", ["1"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: max_rows is 'x'. It must be one of '1'. Omit max_rows, ... [invalid-option]
    """
    try:
        yield
    except FloodmarkError as error:
        pattern = re.compile(rf"\b({'|'.join(map(re.escape, names))})\b")
        fact, rule, remedy = (pattern.sub(lambda match: names[match[0]], text) for text in error.args)
        fields = dict(error.fields)
        if fields.get("option") in names:
            fields["option"] = names[str(fields["option"])]
        if (fact, rule, remedy) == error.args:
            raise
        raise type(error)(fact, rule=rule, remedy=remedy, **fields) from error.__cause__
