"""Where services are: what `connect` takes, and what it refuses without showing a secret."""

from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import InvalidOption
from floodmark.streams import connect
from floodmark.streams.remote.backend import open_remote
from floodmark.streams.remote.client import read_addresses

READ = {
    "http://a": ["http://a"],
    "http://a/": ["http://a"],
    "HTTP://A:8787/": ["http://a:8787"],
    "https://a:1,b:2,c:3/": ["https://a:1", "https://b:2", "https://c:3"],
    "http://a:1,http://b:2": ["http://a:1", "http://b:2"],
    "http://a:1, b:2": ["http://a:1", "http://b:2"],
    "http://a:1,a:1": ["http://a:1"],
    "http://[::1]:8787,[::2]": ["http://[::1]:8787", "http://[::2]"],
}


@pytest.mark.parametrize(("location", "urls"), READ.items())
def test_one_or_several_services_are_named(location: str, urls: list[str]) -> None:
    assert list(read_addresses(location).urls) == urls
    assert str(read_addresses(location)) == ",".join(urls)
    with connect(location) as home:
        assert repr(home) == f"StreamHome(Service('{','.join(urls)}'))"


UNREADABLE = [
    "http://", "http:///", "http://a,", "http://a,,b", "http://a/path", "http://a?x=1", "http://a#x", "http://a:x",
    "http://a:99999", "http://a,https://b", "http://[a", "http://u:secret@a", "http://secret@a,b", "http://a,u:secret@b",
]  # fmt: skip


@pytest.mark.parametrize("location", UNREADABLE)
def test_what_cannot_be_read_is_refused_and_not_shown(location: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        connect(location)
    assert "secret" not in f"{refusal.value} {refusal.value.fields}"


@pytest.mark.parametrize("token", ["", " ", "a b", "a\nb", "é", 7])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: Any) -> None:
    with pytest.raises(InvalidOption) as refusal:
        open_remote("http://a", token=token)
    assert refusal.value.fields == {"option": "token"}


def test_what_would_change_nothing_is_refused(tmp_path: Path) -> None:
    for options in ({"token": "x"}, {"ca": tmp_path}):
        with pytest.raises(InvalidOption, match="not behind a service"):
            connect(tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidOption, match="behind a service"):
        connect("http://a", clock=lambda: 0)


def test_a_client_in_the_child_of_a_fork_has_connections_of_its_own() -> None:
    home = open_remote("http://127.0.0.1:1")
    pool = home._client._pool
    home._client._process -= 1
    home._client._check_open()
    assert home._client._pool is not pool
