"""Claims about a home in PostgreSQL: who may come in, what locks do, and what goes wrong with a server."""

import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DatabaseError

from floodmark.control import Home, WatermarkSteps
from floodmark.control import home as _home
from floodmark.control.migrations.runner import migrate
from floodmark.control.store.base import Store
from floodmark.control.store.postgres import parse_postgres_url
from floodmark.errors import FloodmarkError, InvalidOption
from floodmark.testing import PostgresServer

ANN, SECRET = "ann", "se@cr/et#?"


def with_options(url: str, *options: str) -> str:
    return f"{url}&options={quote(' '.join(f'-c {option}' for option in options))}"


@pytest.fixture(scope="module")
def anns(postgres: PostgresServer) -> Callable[[str | None], str]:
    """Give URLs of Ann's own database, with a password or without."""
    postgres.execute(f"CREATE ROLE {ANN} LOGIN PASSWORD '{SECRET}'")
    postgres.execute(f"CREATE DATABASE anns OWNER {ANN}")
    return lambda password: postgres.url_of("anns", ANN, password)


def test_a_home_has_no_directory_and_says_what_to_use_instead(postgres_home: Home) -> None:
    with pytest.raises(FloodmarkError, match=r"Home\.location") as refusal:
        _ = postgres_home.path
    assert refusal.value.code == "home-unusable"


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgres"])
def test_a_url_may_name_the_driver_or_not(postgres_home: Home, scheme: str) -> None:
    with Home.open_existing(postgres_home.location.replace("postgresql", scheme, 1)) as again:
        assert again.location == postgres_home.location


def test_the_right_password_opens_and_is_shown_nowhere_but_in_the_location(anns: Callable[[str], str]) -> None:
    with Home.open(anns(SECRET)) as home:
        assert "ann:***@" in repr(home)
        assert quote(SECRET, safe="") in home.location
        assert quote(SECRET, safe="") not in repr(home)
        with Home.open_existing(home.location) as again:
            again.close()
            with pytest.raises(FloodmarkError) as refusal:
                again.now()
    assert_hidden(refusal.value)


def test_a_password_may_come_from_the_environment(anns: Callable[[None], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with Home.open(anns(None)) as home:
        assert home.now() > 0


def test_a_password_that_was_found_goes_to_other_processes_with_the_location(
    anns: Callable[[None], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "passwords"
    file.write_text(f"*:*:*:{ANN}:{SECRET}")
    file.chmod(0o600)
    for name, value in (("PGPASSWORD", SECRET), ("PGPASSFILE", str(file))):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            with Home.open(anns(None)) as home:
                location, address = home.location, home.address
            with Home.open_existing(address) as again:
                assert again.address == address
        assert quote(SECRET, safe="") in location
        assert quote(SECRET, safe="") not in address
        with Home.open_existing(location) as elsewhere:
            assert elsewhere.address.partition("?")[0] == address.partition("?")[0]


def test_the_address_is_the_same_for_every_password(anns: Callable[[str | None], str]) -> None:
    with Home.open(anns(SECRET)) as home:
        assert home.address == anns(None)
    assert parse_postgres_url(anns("another")).address == anns(None)


def assert_hidden(error: BaseException) -> None:
    told = "".join(traceback.format_exception(error)) + repr(getattr(error, "fields", None))
    for secret in (SECRET, quote(SECRET, safe=""), "wrong-one", "cr/et"):
        assert secret not in told


def no_such_database(server: PostgresServer) -> str:
    return server.url_of("nowhere")


UNUSABLE: dict[str, tuple[Callable[[PostgresServer], str], str]] = {
    "wrong password": (lambda server: server.url_of("anns", ANN, "wrong-one"), "password authentication failed"),
    "password in the query": (
        lambda server: f"{server.url_of('anns', ANN)}&password=wrong-one",
        "password authentication failed",
    ),
    "no such user": (lambda server: server.url_of("postgres", "nobody-here", SECRET), "authentication failed"),
    "no such database": (no_such_database, '"nowhere" does not exist'),
    "no server": (lambda server: f"postgresql://{ANN}:wrong-one@127.0.0.1:1/db", "refused"),
    "no such socket": (lambda server: "postgresql:///db?host=/nowhere", "No such file"),
    "may not make tables": (lambda server: server.url_of("postgres", ANN, SECRET), "permission denied"),
    "no such option": (lambda server: with_options(server.url, "nonsense=1"), "nonsense"),
}


@pytest.mark.parametrize(("url_of", "said"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_server_that_lets_nobody_in_is_told_apart_and_no_password_is_shown(
    postgres: PostgresServer, anns: object, url_of: Callable[[PostgresServer], str], said: str
) -> None:
    with pytest.raises(FloodmarkError, match=said) as refusal:
        Home.open(url_of(postgres))
    assert refusal.value.code == "home-unusable"
    assert_hidden(refusal.value)


UNREADABLE = {
    "'@' in a password": "postgresql://ann:se@cr/et@host/db",
    "'/' in a password": "postgresql://ann:cr/et@host/db",
    "'%' in a password": "postgresql://ann:wrong-one%zz@host/db",
    "an option that is none": "postgresql://ann:wrong-one@host/db?nonsense=1",
    "a port that is none": "postgresql://host:wrong-one/db",
}


@pytest.mark.parametrize("url", UNREADABLE.values(), ids=UNREADABLE)
def test_a_url_that_cannot_be_read_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidOption, match="cannot be read") as refusal:
        Home.open(url)
    assert_hidden(refusal.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://h/d", "postgresql://h/d"),
        ("postgresql://u@h:5433/d?sslmode=require", "postgresql://u@h:5433/d"),
        ("postgresql://h/d?user=u&password=p", "postgresql://u:***@h/d"),
        ("postgresql://u:p@[::1]/d", "postgresql://u:***@[::1]/d"),
        ("postgres://u@/d?host=/run/pg", "postgresql://u@/d?host=/run/pg"),
        ("postgresql://", "postgresql:///"),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert parse_postgres_url(url).shown == shown


def test_without_the_driver_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ImportError, match=r"floodmark\[postgres\]") as refusal:
        Home.open("postgresql://ann:wrong-one@host/db")
    assert isinstance(refusal.value, FloodmarkError)
    assert refusal.value.code == "missing-package"


CODES = {"40001": "conflict", "40P01": "conflict", "55P03": "home-busy", "57014": "home-busy", "53100": "home-unusable"}


@pytest.mark.parametrize(("sqlstate", "code"), CODES.items())
def test_what_the_server_reports_becomes_an_error_that_says_what_to_do(
    postgres_home: Home, sqlstate: str, code: str
) -> None:
    with pytest.raises(FloodmarkError) as refusal, postgres_home.write() as connection:
        connection.execute(text(f"DO $$ BEGIN RAISE SQLSTATE '{sqlstate}'; END $$"))
    assert (refusal.value.code, refusal.value.fields["sqlstate"]) == (code, sqlstate)


def test_what_the_server_reports_of_a_statement_stays_as_it_is(postgres_home: Home) -> None:
    with pytest.raises(DatabaseError, match="division by zero"), postgres_home.write() as connection:
        connection.execute(text("SELECT 1 / 0"))


LOCK_A, LOCK_B = (text(f"SELECT * FROM watermark_incarnation WHERE incarnation = '{one}' FOR UPDATE") for one in "ab")


def test_who_waits_too_long_for_a_lock_is_told_so(postgres_home: Home) -> None:
    WatermarkSteps(postgres_home).create("a", {}, now=0)
    impatient = with_options(postgres_home.location, "lock_timeout=50ms")
    with Home.open(impatient) as other, postgres_home.write() as connection:
        connection.execute(LOCK_A)
        with pytest.raises(FloodmarkError, match="pg_stat_activity") as refusal, other.write() as waiting:
            waiting.execute(LOCK_A)
    assert refusal.value.code == "home-busy"


def test_of_two_that_wait_for_each_other_one_has_a_conflict_and_the_other_goes_on(postgres_home: Home) -> None:
    steps = WatermarkSteps(postgres_home)
    steps.create("a", {}, now=0)
    steps.create("b", {}, now=0)
    met, outcomes = threading.Barrier(2), []

    def lock(first: object, second: object) -> None:
        with Home.open(with_options(postgres_home.location, "deadlock_timeout=20ms")) as home:
            try:
                with home.write() as connection:
                    connection.execute(first)  # type: ignore[call-overload]
                    met.wait(10)
                    connection.execute(second)  # type: ignore[call-overload]
                outcomes.append("done")
            except FloodmarkError as error:
                outcomes.append(error.code)

    threads = [threading.Thread(target=lock, args=order) for order in ((LOCK_A, LOCK_B), (LOCK_B, LOCK_A))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "done"]


def test_a_transaction_that_hangs_does_not_keep_its_locks_for_ever(postgres_home: Home) -> None:
    steps = WatermarkSteps(postgres_home)
    steps.create("a", {}, now=0)
    hanging = with_options(postgres_home.location, "idle_in_transaction_session_timeout=50ms")

    def hang() -> None:
        with other.write() as connection:
            connection.execute(LOCK_A)
            steps.add("a", 0, None, {}, now=0)
            connection.execute(LOCK_A)

    with Home.open(hanging) as other:
        with pytest.raises(FloodmarkError) as refusal:
            hang()
        assert refusal.value.code == "home-unusable"
        assert WatermarkSteps(other).newest("a") is not None, "and the home that hung can be used again"


def test_connections_that_the_server_has_ended_are_replaced(postgres_home: Home) -> None:
    postgres_home.changes()
    with psycopg.connect(postgres_home.location, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    assert postgres_home.changes("t") == {"t": 0}
    WatermarkSteps(postgres_home).create("a", {}, now=0)


def test_close_lets_go_of_every_connection(postgres: PostgresServer) -> None:
    with Home.open(with_options(postgres.new_database(), "application_name=counted")) as home:
        home.changes()
        with home.read() as first, home.write() as second:
            home.now(first)
            home.now(second)
    count = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'counted'"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        while connection.execute(count).fetchone() != (0,):
            pass  # the server takes a moment to notice; if it never does, the test does not end


def test_the_second_process_at_a_new_database_waits_for_the_first(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, is_in, opened = postgres.new_database(), threading.Event(), threading.Event()

    def migrate_slowly(store: Store) -> None:
        with store.writer.begin() as connection:
            store.lock_schema(connection)
            is_in.set()
            assert not opened.wait(0.2)
        migrate(store)

    def second() -> None:
        is_in.wait(10)
        monkeypatch.undo()
        Home.open(url).close()
        opened.set()

    thread = threading.Thread(target=second)
    monkeypatch.setattr(_home, "migrate", migrate_slowly)
    thread.start()
    Home.open(url).close()
    thread.join()
    assert opened.is_set()


CREATE_HOLDS = text("CREATE TABLE source (since BIGINT NOT NULL); CREATE TABLE hold (ts BIGINT NOT NULL)")
SINCE, LOWEST_HOLD = "SELECT since FROM source", text("SELECT MIN(ts) FROM hold")


@pytest.mark.parametrize(("lock", "ends"), [("", (12, 20)), (" FOR UPDATE", (12, 12))], ids=["without", "with a lock"])
def test_a_hold_and_a_compaction_at_once_agree_if_both_first_lock_the_row_of_the_source(
    postgres: PostgresServer, lock: str, ends: tuple[int, int]
) -> None:
    """Without the lock each looks at what the other is about to change: a hold at 12 stands while since is 20."""

    def compact(connection: Connection) -> None:
        connection.execute(text(SINCE + lock))
        lowest = connection.execute(LOWEST_HOLD).scalar()
        connection.execute(
            text("UPDATE source SET since = :since"), {"since": 20 if lowest is None else min(20, lowest)}
        )

    def compact_in_full() -> None:
        with home.write() as connection:
            is_there.set()
            compact(connection)

    is_there = threading.Event()
    other = threading.Thread(target=compact_in_full)
    with Home.open(postgres.new_database()) as home:
        with home.write() as connection:
            connection.execute(CREATE_HOLDS)
            connection.execute(text("INSERT INTO source VALUES (10)"))
        with home.write() as connection:
            assert connection.execute(text(SINCE + lock)).scalar_one() <= 12
            other.start()
            assert is_there.wait(10)
            other.join(0.2)
            assert other.is_alive() == bool(lock)
            connection.execute(text("INSERT INTO hold VALUES (12)"))
        other.join()
        with home.read() as connection:
            found = connection.execute(LOWEST_HOLD).scalar_one(), connection.execute(text(SINCE)).scalar_one()
    assert found == ends
