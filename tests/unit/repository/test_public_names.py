"""What is public is exactly what is listed, and every error has a code of its own."""

import importlib
import inspect
import pickle
import pkgutil
from pathlib import Path
from types import ModuleType

import pytest

import floodmark
from floodmark import errors
from floodmark.errors import FloodmarkError

SOURCES = Path(floodmark.__file__).parent

PACKAGES = [
    "floodmark.bindings",
    "floodmark.cli",
    "floodmark.control",
    "floodmark.delta",
    "floodmark.errors",
    "floodmark.ingest",
    "floodmark.progress",
    "floodmark.service",
    "floodmark.sinks",
    "floodmark.spark",
    "floodmark.streams",
    "floodmark.testing",
]


def defined_names(module: ModuleType) -> set[str]:
    """Return the names that a reader would take for public."""
    return {name for name, value in vars(module).items() if not name.startswith("_") and not inspect.ismodule(value)}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_are_exactly_those_listed(package: str) -> None:
    module = importlib.import_module(package)
    listed = set(module.__all__)
    imported_from_elsewhere = {
        name
        for name in defined_names(module) - listed
        if getattr(getattr(module, name), "__module__", "").partition(".")[0] != "floodmark"
    }
    # What is loaded when it is first asked for is not there before.
    loaded_late = {name for name in listed - defined_names(module) if hasattr(module, name)}
    assert (defined_names(module) - imported_from_elsewhere) | loaded_late == listed


def test_the_root_exports_exactly_what_it_lists() -> None:
    assert {name for name in floodmark.__all__ if not hasattr(floodmark, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        floodmark.nonsense  # noqa: B018


@pytest.mark.parametrize("package", ["floodmark", "floodmark.spark"])
def test_dir_shows_the_public_names_and_the_rooms_before_they_are_loaded(package: str) -> None:
    module = importlib.import_module(package)
    rooms = {info.name for info in pkgutil.iter_modules(module.__path__) if not info.name.startswith("_")}
    assert dir(module) == sorted({*module.__all__, *rooms})
    assert all(inspect.ismodule(getattr(module, room)) for room in rooms)


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_says_what_it_is(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name


def test_no_folder_shows_more_than_sixteen_entries() -> None:
    for folder in (path for path in SOURCES.rglob("*") if path.is_dir() and path.name != "__pycache__"):
        entries = [path.name for path in folder.iterdir() if path.name not in ("__pycache__", "py.typed")]
        assert len(entries) <= 16, (folder, sorted(entries))


ERRORS = [getattr(errors, name) for name in errors.__all__]


def test_each_error_has_a_code_of_its_own() -> None:
    codes = [error.code for error in ERRORS]
    assert len(set(codes)) == len(codes)
    assert all(code == code.lower() and " " not in code for code in codes)


def test_no_code_of_an_error_changes_or_disappears() -> None:
    frozen = (Path(__file__).parent / "error_codes.txt").read_text().split()
    assert sorted(error.code for error in ERRORS) == frozen


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_an_error_tells_fact_rule_and_remedy_and_survives_a_pickle(kind: type[FloodmarkError]) -> None:
    error = kind("It is so.", rule="It must not be.", remedy="Change it.", value=7)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == f"It is so. It must not be. Change it. [{kind.code}]"
    assert (type(again), again.fields) == (kind, {"value": 7})
