"""Options with a fixed choice of values, and options that do not exist."""

from collections.abc import Iterable, Mapping, Sequence

from floodmark._util.text import did_you_mean
from floodmark.errors import InvalidOption


def require_one_of(option: str, value: str, known: Sequence[str], otherwise: str = "Leave it out.") -> None:
    """Refuse a value that is not among the known ones.

    >>> require_one_of("late", "rout", ["drop", "route"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: late is 'rout'. It is one of 'drop', 'route'. Did you mean 'route'? [invalid-option]
    """
    if value not in known:
        raise InvalidOption(
            f"{option} is {value!r}.",
            rule=f"It is one of {', '.join(map(repr, known))}.",
            remedy=did_you_mean(str(value), known, otherwise=otherwise),
            option=option,
            value=value,
        )


def refuse_unknown_options(unknown: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse options that do not exist.

    >>> refuse_unknown_options({"idel": "1 minute"}, ["delay", "idle"])
    Traceback (most recent call last):
    floodmark.errors.InvalidOption: There is no option 'idel'. ... Did you mean 'idle'? [invalid-option]
    """
    names = list(known)
    for option, value in unknown.items():
        raise InvalidOption(
            f"There is no option {option!r}.",
            rule=f"The options are {', '.join(names)}.",
            remedy=did_you_mean(option, names, otherwise="Leave it out."),
            option=option,
            value=value,
        )
