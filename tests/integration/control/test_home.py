"""Claims about every home, in SQLite and in PostgreSQL: what its transactions promise, and where it is."""

import threading
from collections.abc import Callable
from pathlib import Path
from time import time_ns

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError, IntegrityError

from floodmark.control import Home, WatermarkSteps
from floodmark.control.store.base import insert_if_absent
from floodmark.control.tables import WATERMARK_INCARNATIONS
from floodmark.errors import FloodmarkError
from support.processes import finish, start

COUNT = text("SELECT COUNT(*) FROM watermark_incarnation")
INSERT = text("INSERT INTO watermark_incarnation VALUES (:id, '{}', NULL, NULL, 0)")


def test_a_location_opens_the_same_home_again(home: Home) -> None:
    WatermarkSteps(home).create("a", {}, now=7)
    with Home.open_existing(home.location) as again:
        assert WatermarkSteps(again).incarnation("a").created_at == 7
        assert (again.location, repr(again)) == (home.location, repr(home))


def test_the_environment_may_name_either_kind(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOODMARK_HOME", place)
    with Home.open() as home, Home.open_existing() as again:
        assert home.location == again.location == place


def test_what_is_not_there_is_refused_and_not_made(place: str) -> None:
    for _ in range(2):
        with pytest.raises(FloodmarkError, match="There is no home at") as refusal:
            Home.open_existing(place)
        assert refusal.value.code == "home-missing"


def test_a_write_is_kept_and_one_that_fails_is_not(home: Home) -> None:
    with home.write() as connection:
        connection.execute(INSERT, {"id": "kept"})
    with pytest.raises(IntegrityError), home.write() as connection:
        connection.execute(INSERT, [{"id": "lost"}, {"id": "kept"}])
    with home.read() as connection:
        assert connection.execute(COUNT).scalar() == 1


def test_a_read_sees_one_state_while_others_write(home: Home) -> None:
    with home.read() as reading:
        assert reading.execute(COUNT).scalar() == 0
        with home.write() as connection:
            connection.execute(INSERT, {"id": "new"})
        assert reading.execute(COUNT).scalar() == 0


def test_a_write_in_a_read_is_refused_not_lost(home: Home) -> None:
    with pytest.raises(FloodmarkError, match=r"read-?only") as refusal, home.read() as connection:
        connection.execute(INSERT, {"id": "lost"})
    assert refusal.value.code == "home-unusable"


def test_a_connection_that_has_read_can_write_again(home: Home) -> None:
    for number in range(3):
        with home.read() as connection:
            assert connection.execute(COUNT).scalar() == number
        with home.write() as connection:
            connection.execute(INSERT, {"id": str(number)})


def test_what_belongs_together_is_held_together(home: Home) -> None:
    with pytest.raises(IntegrityError), home.write() as connection:
        connection.execute(text("INSERT INTO watermark_step VALUES ('nobody', 0, NULL, '{}', 0)"))


def test_a_statement_that_is_wrong_is_not_blamed_on_the_store(home: Home) -> None:
    with pytest.raises(DatabaseError, match="nonsense"), home.read() as connection:
        connection.execute(text("SELECT * FROM nonsense"))


def test_after_close_nothing_works_and_a_second_close_is_fine(home: Home) -> None:
    home.changes()
    home.close()
    home.close()

    def use(way: str) -> None:
        with getattr(home, way)():
            pass

    for action in (lambda: use("read"), lambda: use("write"), home.now, home.changes):
        with pytest.raises(FloodmarkError) as refusal:
            action()
        assert refusal.value.code == "home-closed"


def test_many_threads_use_one_home(home: Home) -> None:
    def create(number: int) -> None:
        for part in range(5):
            WatermarkSteps(home).create(f"{number}-{part}", {}, now=0)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with home.read() as connection:
        assert connection.execute(COUNT).scalar() == 40


def test_its_clock_shows_microseconds_and_goes_on_within_a_transaction(home: Home) -> None:
    before = time_ns() // 1000
    with home.write() as connection:
        first = home.now(connection)
        second = home.now(connection)
        while second == first:
            second = home.now(connection)
    assert first < second
    assert abs(home.now() - before) < 60_000_000


FORK = """
import os, sys
from floodmark.control import Home, WatermarkSteps
from floodmark.control.tables import WATERMARK_INCARNATIONS
from floodmark.control.store.base import insert_if_absent
home = Home.open(sys.argv[1])
WatermarkSteps(home).create("parent", {}, now=0)
assert home.changes("t") == {"t": 0}
with home.read() as connection:
    of_parent = connection.connection.dbapi_connection
child = os.fork()
if not child:
    with home.read() as connection:
        assert connection.connection.dbapi_connection is not of_parent
    WatermarkSteps(home).create("child", {}, now=0)
    assert home.changes("t") == {"t": 0}
    home.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert WatermarkSteps(home).incarnation("child").created_at == 0
WatermarkSteps(home).create("parent again", {}, now=0)
assert home.changes("t") == {"t": 0}
home.close()
"""


def test_the_child_of_a_fork_opens_its_own_connections(home: Home) -> None:
    code, printed = finish(start("-c", FORK, home.location, environment={"PYTHONWARNINGS": "error"}))
    assert code == 0, printed


NUL, HALF = "a\0b", "a\ud800b"
REFUSED: dict[str, Callable[[WatermarkSteps], None]] = {
    "NUL in an id": lambda steps: steps.create(NUL, {}, now=0),
    "half a character in an id": lambda steps: steps.create(HALF, {}, now=0),
}


@pytest.mark.parametrize("action", REFUSED.values(), ids=REFUSED)
def test_what_only_one_kind_could_keep_is_refused_by_both(home: Home, action: Callable[[WatermarkSteps], None]) -> None:
    with pytest.raises(FloodmarkError) as refusal:
        action(WatermarkSteps(home))
    assert refusal.value.code == "invalid-value"


def test_a_place_that_can_be_no_home_is_refused() -> None:
    for place in ("s3://bucket/home", "mysql://root:secret@host/db", Path("postgresql://ann:secret@host/db")):
        with pytest.raises(FloodmarkError) as refusal:
            Home.open(place)
        assert refusal.value.code == "invalid-option"
        assert "secret" not in str(refusal.value)


def test_whoever_inserts_a_row_first_is_told_so(home: Home) -> None:
    row = {"incarnation": "a", "settings": "{}", "created_at": 0}
    with home.write() as connection:
        assert insert_if_absent(connection, WATERMARK_INCARNATIONS, row)
        assert not insert_if_absent(connection, WATERMARK_INCARNATIONS, row)
