"""Checks of options: a fixed set of values, and unknown option names."""

from collections.abc import Iterable, Mapping, Sequence

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption


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
