"""The examples of the README run."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "README.md"
RULES, *_ = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_example_of_the_rules_prints_what_its_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(RULES, "README.md", "exec"), {})
    first, second, *_ = capsys.readouterr().out.splitlines()
    said = re.findall(r"# (.*)$", RULES, flags=re.MULTILINE)
    assert said[0].startswith(f"{first}:")
    assert said[1] == f"{second} ..."


def test_the_example_has_at_most_fifteen_lines() -> None:
    assert len([line for line in RULES.splitlines() if line.strip()]) <= 15
