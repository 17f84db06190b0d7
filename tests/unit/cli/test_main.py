"""Claims about the command itself: which there are, what it exits with, what it does not load."""

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from floodmark.cli import entry as _main
from floodmark.cli import main
from floodmark.control import Home, Queries, QueryRecord
from support.processes import run

NOW = 1_700_000_000_000_000


def test_version_names_floodmark_python_and_spark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.split() == [
        *("Floodmark", version("floodmark")),
        *("Python", platform.python_version()),
        *("PySpark", version("pyspark")),
    ]


def test_version_works_without_spark(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def without_spark(name: str) -> str:
        if name == "pyspark":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(_main, "version", without_spark)
    assert main(["version"]) == 0
    assert "PySpark   not installed" in capsys.readouterr().out


WRONG = {
    "nothing": ([], "required: COMMAND"),
    "misspelled": (["wyh"], "there is no command 'wyh'. Did you mean 'why'?"),
    "far from any": (["frobnicate"], "there is no command 'frobnicate'. Commands: version, why, "),
    "unknown option": (["why", "--hmoe", "x"], "unrecognized arguments: --hmoe"),
    "two queries": (["why", "a", "b"], "unrecognized arguments: b"),
}


@pytest.mark.parametrize(("argv", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_exits_with_2_and_says_why(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert said in capsys.readouterr().err


def test_an_error_exits_with_1_and_its_text_and_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["why", "orders", "--home", str(tmp_path / "home")]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("floodmark: There is no home at ")
    assert printed.err.endswith("[home-missing]\n")
    assert list(tmp_path.iterdir()) == []


WITHOUT_SPARK = """
import sys
from floodmark.cli import main
code = main(sys.argv[1:])
assert not {name for name in sys.modules if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "pyarrow")}
sys.exit(code)
"""


def test_why_answers_at_once_and_loads_no_spark(tmp_path: Path) -> None:
    with Home.open(tmp_path) as home:
        Queries(home).record(QueryRecord("q1", "r1", "orders", 4, (), None, "running", None, (), NOW, NOW))
    before = getrusage(RUSAGE_CHILDREN)
    code, printed = run("-c", WITHOUT_SPARK, "why", "orders", "--home", str(tmp_path))
    after = getrusage(RUSAGE_CHILDREN)
    assert code == 0, printed
    assert printed.startswith("orders: running\n")
    # What others do on the machine does not count.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2
