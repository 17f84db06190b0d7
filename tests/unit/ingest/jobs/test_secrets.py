"""Claims about secrets: they are referred to, must be there, and are shown nowhere."""

import pickle
from pathlib import Path

import pytest

from floodmark.errors import FloodmarkError, SecretExposed, SecretMissing
from floodmark.ingest.job.options import Secret, refuse_password

WORD = "hunter2hunter2"


def test_a_secret_is_read_from_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "word").write_text(f"{WORD}\n")
    assert Secret.parse("env:WORD", "x").value({"WORD": WORD}) == WORD
    assert Secret.parse("file:word", "x", folder=tmp_path).value() == WORD
    assert Secret.parse(f"file:{tmp_path / 'word'}", "x", folder=Path("/elsewhere")).value() == WORD


MISSING = {
    "no variable": ("env:WORD", "Set the environment variable WORD."),
    "an empty variable": ("env:EMPTY", "Set the environment variable EMPTY."),
    "no file": ("file:nowhere", "Write the secret into the file"),
    "an empty file": ("file:empty", "Write the secret into the file"),
    "a folder": ("file:.", "Write the secret into the file"),
    "no text": ("file:bytes", "Write the secret into the file"),
}


@pytest.mark.parametrize(("reference", "remedy"), MISSING.values(), ids=MISSING)
def test_a_secret_that_is_missing_is_refused(reference: str, remedy: str, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(SecretMissing, match="is missing") as caught:
        Secret.parse(reference, "x", folder=tmp_path).check({"EMPTY": ""})
    assert remedy in caught.value.remedy


@pytest.mark.parametrize("text", [WORD, f"vault:{WORD}", f"{WORD}:", "env:", "env:  ", "ENV:X"])
def test_a_secret_in_plain_words_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(SecretExposed) as caught:
        Secret.parse(text, "source.password")
    assert "source.password is not a reference" in str(caught.value)
    assert WORD not in _everything(caught.value)


URLS = {
    "user and password": (f"postgresql://ann:{WORD}@db/shop", True),
    "a password with a sign in it": (f"postgresql://ann:{WORD}@x@db/shop", True),
    "a password as an option": (f"postgresql://db/shop?password={WORD}", True),
    "a token as an option": (f"https://api.example/x?a=1&token={WORD}", True),
    "a user alone": ("postgresql://ann@db:5432/shop?sslmode=require", False),
    "a file": ("sqlite:////var/shop.db", False),
    "a colon of a port": ("http://localhost:8080/x", False),
}


@pytest.mark.parametrize(("url", "is_refused"), URLS.values(), ids=URLS)
def test_a_url_with_a_password_is_refused_and_not_repeated(url: str, is_refused: bool) -> None:
    if not is_refused:
        refuse_password(url, "url")
        return
    with pytest.raises(SecretExposed) as caught:
        refuse_password(url, "url")
    assert WORD not in _everything(caught.value)


def test_a_url_of_a_file_is_no_reference() -> None:
    texts = ("env:A", "file:a", "file:/a", "file:///a", "sqlite:///a")
    assert [Secret.is_reference(text) for text in texts] == [True, True, True, False, False]


def test_a_reference_shows_its_name_and_never_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORD", WORD)
    secret = Secret.parse("env:WORD", "x")
    secret.check()
    assert secret.value() == WORD
    assert WORD not in f"{secret} {secret!r} {pickle.dumps(secret)!r}"


def _everything(error: FloodmarkError) -> str:
    return f"{error} {error!r} {error.fields} {error.__cause__!r}"
