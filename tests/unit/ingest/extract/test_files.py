"""Which files are listed for a unit, when each of them is, and which are of a range."""

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from floodmark.errors import (
    FileMissing,
    FileTimeUnknown,
    FloodmarkError,
    InvalidOption,
    SourceChanged,
    SourceFailed,
    SourceRefused,
    UnitsInvalid,
    UnknownVariable,
)
from floodmark.ingest import FilesSource, PlannedRange, Range, Unit
from floodmark.ingest.calendar.clock import wall_to_micros, zone_of
from floodmark.ingest.extract.files import (
    FileManifest,
    ListedFile,
    changed_files,
    files_in_range,
    list_files,
    require_unchanged,
)

ALL = Unit.of({})
HOUR = 3_600_000_000


@pytest.fixture
def drops(tmp_path: Path) -> Path:
    (tmp_path / "drops").mkdir()
    return tmp_path / "drops"


def put(folder: Path, *names: str, text: str = "1") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def source_of(*paths: Path | str, **more: Any) -> FilesSource:
    return FilesSource(paths=tuple(map(str, paths)), format="csv", **more)


def names(folder: Path, *patterns: str, unit: Unit = ALL, **more: Any) -> list[str]:
    listed = list_files(source_of(*(folder / pattern for pattern in patterns), **more), "UTC", unit)
    return sorted(file.path.removeprefix(f"{folder}/") for file in listed)


TREE = (
    *("a.csv", "b.csv", "b.txt", "x/c.csv", "x/y/d.csv", "x1/e.csv", "x1/f.txt", ".h.csv", "_h.csv", "x/_tmp/g.csv"),
    *("x/.git/h.csv", "_day=1/i.csv", "j.csv._COPYING_", "[1]/k.csv", "1/l.csv", "m*.csv", "o{1}.csv"),
)
HIDDEN = {".h.csv", "_h.csv", "x/_tmp/g.csv", "x/.git/h.csv", "j.csv._COPYING_"}
SHOWN = [name for name in TREE if name not in HIDDEN]

PATTERNS: dict[str, tuple[str, list[str]]] = {
    "a star is within one part": ("*.csv", ["a.csv", "b.csv", "m*.csv", "o{1}.csv"]),
    "a question mark is one character": ("?.csv", ["a.csv", "b.csv"]),
    "a set of characters": ("[bc].*", ["b.csv", "b.txt"]),
    "all but a set": ("[!b].csv", ["a.csv"]),
    "a star for a directory": ("x*/*.csv", ["x/c.csv", "x1/e.csv"]),
    "two stars are any number of directories": (
        "**/*.csv",
        [name for name in SHOWN if name.endswith(".csv")],
    ),
    "two stars in the middle": ("x/**/d.csv", ["x/y/d.csv"]),
    "two stars are also no directory": ("x/**/c.csv", ["x/c.csv"]),
    "two stars at the end": ("x/**", ["x/c.csv", "x/y/d.csv"]),
    "a directory is all below it": ("x", ["x/c.csv", "x/y/d.csv"]),
    "a directory with a slash": ("x/", ["x/c.csv", "x/y/d.csv"]),
    "a directory that a pattern finds": ("x?", ["x1/e.csv", "x1/f.txt"]),
    "everything that is not hidden": ("", SHOWN),
    "a hidden directory that the pattern begins like": ("x/_*", ["x/_tmp/g.csv"]),
    "a hidden directory that the pattern does not begin like": ("x/?tmp", []),
    "a value of a column is not hidden": ("?day=1", ["_day=1/i.csv"]),
    "a hidden directory that is named": ("x/_tmp", ["x/_tmp/g.csv"]),
    "a character in brackets is itself": ("m[*].csv", ["m*.csv"]),
    "a bracket that fits a name": ("[1]/*.csv", ["1/l.csv"]),
    "a bracket in brackets": ("[[]1]/*.csv", ["[1]/k.csv"]),
    "braces mean themselves": ("o{1}.csv", ["o{1}.csv"]),
    "a pattern that finds nothing": ("*.parquet", []),
    "a pattern below a file": ("a.csv/*", []),
    "a pattern below nothing": ("nowhere/*.csv", []),
}


@pytest.mark.parametrize(("pattern", "expected"), PATTERNS.values(), ids=PATTERNS)
def test_a_pattern_finds_what_it_means(drops: Path, pattern: str, expected: list[str]) -> None:
    put(drops, *TREE)
    assert names(drops, pattern) == sorted(expected)


def test_brackets_that_fit_nothing_and_are_there_as_written_are_meant_so(drops: Path) -> None:
    put(drops, "[2]/a.csv", "n[3].csv")
    assert names(drops, "[2]/*.csv") == ["[2]/a.csv"]
    assert names(drops, "n[3].csv") == ["n[3].csv"]


def test_several_paths_give_each_file_once(drops: Path) -> None:
    put(drops, "a.csv", "b.csv")
    assert names(drops, "*.csv", "a.csv", "../drops/a.csv", "") == ["a.csv", "b.csv"]


def test_paths_are_absolute_and_may_be_written_as_uris(drops: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(drops, "a.csv")
    monkeypatch.chdir(drops.parent)
    for path in ("drops/*.csv", f"file://{drops}/a.csv", "drops"):
        (file,) = list_files(source_of(path), "UTC", ALL)
        assert file.path == str(drops / "a.csv")


UNITS: dict[str, tuple[object, list[str]]] = {
    "a text": ("eu", ["eu/a.csv"]),
    "a number": (7, ["7/a.csv"]),
    "a truth value": (True, ["true/a.csv"]),
    "a star is a star": ("*", ["*/a.csv"]),
    "brackets are brackets": ("[e]u", ["[e]u/a.csv"]),
    "braces are braces": ("{a,b}", ["{a,b}/a.csv"]),
    "one that has no files": ("us", []),
    "hidden, but named": ("_eu", ["_eu/a.csv"]),
}


@pytest.mark.parametrize(("value", "expected"), UNITS.values(), ids=UNITS)
def test_the_field_of_a_unit_means_itself(drops: Path, value: object, expected: list[str]) -> None:
    put(drops, *(f"{name}/a.csv" for name in ("eu", "7", "true", "*", "[e]u", "{a,b}", "_eu")))
    assert names(drops, "{{unit.id}}/*.csv", unit=Unit.of({"id": value})) == expected


def test_a_path_whose_unit_has_a_star_is_still_a_path(drops: Path) -> None:
    with pytest.raises(FileMissing) as caught:
        names(drops, "{{ unit.id }}/a.csv", unit=Unit.of({"id": "*"}))
    assert caught.value.fields["path"] == f"{drops}/*/a.csv"


@pytest.mark.parametrize("value", ["", ".", "..", "../secret", "/etc", "a/b", None, "a\0b"])
def test_the_field_of_a_unit_never_leads_elsewhere(drops: Path, value: object) -> None:
    put(drops, "a.csv")
    with pytest.raises(UnitsInvalid) as caught:
        names(drops, "{{unit.id}}/*.csv", unit=Unit.of({"id": value}))
    assert caught.value.fields["field"] == "id"
    assert names(drops, "a.csv", unit=Unit.of({"id": value})) == ["a.csv"]  # it is not in the path


def broken_link(drops: Path) -> None:
    (drops / "a.csv").symlink_to(drops / "gone.csv")


def pipe(drops: Path) -> None:
    os.mkfifo(drops / "a.csv")


def no_name(drops: Path) -> None:
    (Path(os.fsdecode(os.fsencode(drops) + b"/\xff.csv"))).write_text("1")


WRONG: dict[str, tuple[Callable[[Path], None] | None, str, type[FloodmarkError], str]] = {
    "a path that is not there": (None, "a.csv", FileMissing, "There is no"),
    "a path below a file": (lambda drops: put(drops, "a"), "a/b.csv", FileMissing, "There is no"),
    "a link that leads nowhere": (broken_link, "*.csv", FileMissing, "does not exist"),
    "a link in a directory": (broken_link, "", FileMissing, "does not exist"),
    "a hidden file that is named": (lambda drops: put(drops, "_a.csv"), "_a.csv", SourceFailed, "hidden"),
    "a hidden file whose name the pattern begins like": (lambda d: put(d, ".a"), ".*", SourceFailed, "hidden"),
    "a pipe": (pipe, "*.csv", SourceFailed, "no regular file"),
    "a pipe in a directory": (pipe, "", SourceFailed, "no regular file"),
    "a name that is no text": (no_name, "*.csv", SourceFailed, "UTF-8"),
    "alternatives": (None, "{a,b}/*.csv", InvalidOption, "braces"),
    "a range": (None, "{{range.from}}.csv", InvalidOption, "{{range.from}}"),
    "a field that is not there": (None, "{{unit.id}}.csv", UnknownVariable, "'unit.id'"),
}


@pytest.mark.parametrize(("make", "pattern", "error", "said"), WRONG.values(), ids=WRONG)
def test_what_would_leave_a_hole_is_an_error(
    drops: Path, make: Callable[[Path], None] | None, pattern: str, error: type[FloodmarkError], said: str
) -> None:
    if make is not None:
        make(drops)
    with pytest.raises(error) as caught:
        names(drops, pattern)
    assert said in caught.value.fact


@pytest.mark.parametrize("path", ["s3://bucket/a.csv", "hdfs://x/*.csv", "gs://b", "https://x/a.csv"])
def test_object_stores_are_refused_with_a_way_out(path: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        list_files(source_of(path), "UTC", ALL)
    assert "Mount" in caught.value.remedy


@pytest.mark.parametrize("pattern", ["x/*.csv", "**/*.csv", "", "x"])
def test_a_directory_that_cannot_be_read_is_an_error(
    drops: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(drops, "x/a.csv")
    real = os.scandir

    def scandir(path: str) -> Any:
        if path.endswith("/x"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(SourceRefused) as caught:
        names(drops, pattern)
    assert caught.value.fields["path"] == f"{drops}/x"


@pytest.mark.parametrize("name", ["pathGlobFilter", "modifiedBefore", "recursiveFileLookup", "IGNOREMISSINGFILES"])
def test_options_that_decide_which_files_are_read_are_refused(drops: Path, name: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        names(drops, "*.csv", options={name: "true"})
    assert caught.value.fields["name"] == name


@pytest.mark.parametrize("pattern", ["*.csv", ""])
def test_a_file_that_is_removed_while_it_is_listed_is_not_there(
    drops: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(drops, "a.csv", "b.csv")
    real = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[Any]:
        with real(path) as entries:
            yield entries
        (drops / "a.csv").unlink(missing_ok=True)

    monkeypatch.setattr(os, "scandir", scandir)
    assert names(drops, pattern) == ["b.csv"]


def test_a_link_is_another_name_and_counts_once(drops: Path, tmp_path: Path) -> None:
    put(drops, "2020/a.csv")
    put(tmp_path / "elsewhere", "b.csv")
    (drops / "latest").symlink_to(drops / "2020")
    (drops / "0.csv").symlink_to(drops / "2020" / "a.csv")
    (drops / "b1.csv").symlink_to(tmp_path / "elsewhere" / "b.csv")
    (drops / "b2.csv").symlink_to(tmp_path / "elsewhere" / "b.csv")
    (drops / "2020" / "back").symlink_to(drops)
    assert names(drops, "") == ["2020/a.csv", "b1.csv"]
    assert names(drops, "**/*.csv") == ["2020/a.csv", "b1.csv"]
    assert names(drops, "latest") == ["latest/a.csv"]  # what is named is meant
    (tmp_path / "alias").symlink_to(drops)
    assert names(tmp_path / "alias", "") == ["2020/a.csv", "b1.csv"]


def test_hard_links_are_files_of_their_own(drops: Path) -> None:
    put(drops, "a.csv")
    os.link(drops / "a.csv", drops / "b.csv")
    assert names(drops, "*") == ["a.csv", "b.csv"]


def test_a_file_has_its_size_and_when_it_was_modified(drops: Path) -> None:
    put(drops, "a.csv", text="abc")
    os.utime(drops / "a.csv", ns=(0, 1_234_567_891))
    assert list_files(source_of(drops / "*"), "UTC", ALL) == (
        ListedFile(str(drops / "a.csv"), 3, 1_234_567, 1_234_567),
    )


def test_files_are_in_the_order_of_their_times_and_then_of_their_names(drops: Path) -> None:
    put(drops, "a", "b", "c", "d")
    for name, time in (("a", 3), ("b", 1), ("c", 2), ("d", 1)):
        os.utime(drops / name, (time, time))
    listed = list_files(source_of(drops / "d", drops), "UTC", ALL)
    assert [Path(file.path).name for file in listed] == ["b", "d", "c", "a"]
    assert [Path(file.path).name for file in files_in_range(listed, Range(1_000_000, 3_000_000))] == ["b", "d", "c"]
    assert files_in_range(listed, Range(1_000_001, 2_000_000)) == ()
    assert pickle.loads(pickle.dumps(listed)) == listed


def test_files_whose_rows_have_times_have_none_and_are_of_each_range(drops: Path) -> None:
    put(drops, "b", "a")
    listed = list_files(source_of(drops, time="column", column="at"), "UTC", ALL)
    assert [(Path(file.path).name, file.time) for file in listed] == [("a", None), ("b", None)]
    assert files_in_range(listed, Range(0, 1)) == listed
    assert files_in_range((), Range(0, 1)) == ()


def at(text: str, zone: str, fold: int = 0) -> int:
    return wall_to_micros(datetime.fromisoformat(text).replace(fold=fold), zone_of(zone))


BERLIN, LOS_ANGELES, DAY, STAMP = "Europe/Berlin", "America/Los_Angeles", r"(?P<time>\d{8})", r"-(?P<time>\d{12})"
NAMED: dict[str, tuple[str, str, str, str | None, int]] = {
    "a day of the job's zone": ("orders-20200301.csv", DAY, "%Y%m%d", None, at("2020-03-01", BERLIN)),
    "a day of the source's zone": ("20200301", DAY, "%Y%m%d", "Asia/Tokyo", at("2020-03-01", "Asia/Tokyo")),
    "an hour that comes twice is the later": (
        *("a-202010250230", STAMP, "%Y%m%d%H%M", None),
        at("2020-10-25T02:30", BERLIN, fold=1),
    ),
    "an hour that comes twice, elsewhere": (
        *("a-202011010130", STAMP, "%Y%m%d%H%M", LOS_ANGELES),
        at("2020-11-01T01:30", LOS_ANGELES) + HOUR,
    ),
    "an hour that is skipped is when it is skipped": (
        *("a-202003290230", STAMP, "%Y%m%d%H%M", None),
        at("2020-03-29T03:00", BERLIN),
    ),
    "an offset in the name counts": (
        *("x_2020-03-01T10:00:00+0530.csv", "_(?P<time>.*)[.]csv", "%Y-%m-%dT%H:%M:%S%z", None),
        at("2020-03-01T04:30", "UTC"),
    ),
    "a slash in the pattern means all of the path": (
        *("2020/03/01/a1.csv", r"/(?P<time>\d{4}/\d{2}/\d{2})/", "%Y/%m/%d", None),
        at("2020-03-01", BERLIN),
    ),
    "without one the last part counts": ("20200301/20200302.csv", DAY, "%Y%m%d", None, at("2020-03-02", BERLIN)),
    "fractions": ("a.1.25.csv", r"a.(?P<time>1.\d+)", "%S.%f", "UTC", at("1900-01-01T00:00:01.25", "UTC")),
}


@pytest.mark.parametrize(("name", "pattern", "written", "zone", "expected"), NAMED.values(), ids=NAMED)
def test_the_time_of_a_file_is_in_its_name(
    drops: Path, name: str, pattern: str, written: str, zone: str | None, expected: int
) -> None:
    put(drops, name)
    source = source_of(drops, time="name", name_pattern=pattern, name_format=written, zone=zone)
    (file,) = list_files(source, BERLIN, ALL)
    assert file.time == expected


UNNAMED = {
    "no match": ("orders.csv", "has no time"),
    "no match in the last part": ("20200301/orders.csv", "has no time"),
    "no such day": ("20200230.csv", "'20200230'"),
    "no time at all": ("99999999.csv", "'99999999'"),
}


@pytest.mark.parametrize(("name", "said"), UNNAMED.values(), ids=UNNAMED)
def test_a_name_without_a_time_is_an_error_that_names_it(drops: Path, name: str, said: str) -> None:
    put(drops, "20200101.csv", name)
    with pytest.raises(FileTimeUnknown) as caught:
        names(drops, "**", time="name", name_pattern=DAY, name_format="%Y%m%d")
    assert caught.value.fields["path"] == str(drops / name)
    assert said in caught.value.fact
    assert name in caught.value.fact


def test_a_time_that_the_calendar_cannot_reckon_with_is_an_error(drops: Path) -> None:
    put(drops, "00010101")
    with pytest.raises(FileTimeUnknown):
        names(drops, "*", time="name", name_pattern=DAY, name_format="%Y%m%d", zone="Asia/Tokyo")


def test_an_optional_group_that_is_not_there_is_no_time(drops: Path) -> None:
    put(drops, "a.csv")
    with pytest.raises(FileTimeUnknown, match="has no time"):
        names(drops, "*", time="name", name_pattern="a(?P<time>1)?", name_format="%Y%m%d")


def test_what_has_changed_since_it_was_listed_is_found(drops: Path) -> None:
    put(drops, "a", "b", "c", "d")
    listed = list_files(source_of(drops), "UTC", ALL)
    assert changed_files(listed) == []
    require_unchanged(listed)
    (drops / "a").write_text("longer")
    (drops / "b").unlink()
    os.utime(drops / "c", (1, 1))
    assert [Path(file.path).name for file in sorted(changed_files(listed), key=lambda one: one.path)] == ["a", "b", "c"]
    with pytest.raises(SourceChanged) as caught:
        require_unchanged(listed)
    assert caught.value.fact.startswith(f"'{drops}/b', ")
    assert caught.value.fact.endswith("were changed or removed after they were listed.")


@pytest.mark.parametrize("change", ["removed", "changed"])
def test_one_change_is_told_as_what_it_is(drops: Path, change: str) -> None:
    put(drops, "a")
    listed = list_files(source_of(drops), "UTC", ALL)
    (drops / "a").unlink() if change == "removed" else (drops / "a").write_text("12")
    with pytest.raises(SourceChanged) as caught:
        require_unchanged(listed)
    assert caught.value.fact == f"'{drops}/a' was {change} after it was listed."


def test_a_file_that_was_replaced_with_as_many_bytes_is_found(drops: Path) -> None:
    put(drops, "a")
    listed = list_files(source_of(drops), "UTC", ALL)
    (drops / "b").write_text("2")
    os.utime(drops / "b", ns=(0, listed[0].modified * 1000 + 1_000))
    (drops / "b").rename(drops / "a")
    assert changed_files(listed) == list(listed)


def row_of(unit: Unit, lo: int, hi: int) -> PlannedRange:
    return PlannedRange(unit, Range(lo, hi), Range(lo, hi), "new", ("new",))


def test_a_manifest_is_what_was_there_and_one_unit_fails_alone(drops: Path) -> None:
    put(drops, "eu/20200101.csv", "eu/20200102.csv", "us/20200101.csv", "us/nonsense.csv")
    source = source_of(drops / "{{unit.id}}/*.csv", time="name", name_pattern=DAY, name_format="%Y%m%d")
    eu, us, asia = (Unit.of({"id": name}) for name in ("eu", "us", "asia"))
    manifest = FileManifest.listed(source, "UTC", [eu, us, eu, asia])
    put(drops, "eu/20200101b.csv", "asia/20200101.csv")
    day = at("2020-01-01", "UTC"), at("2020-01-02", "UTC")
    assert [file.path for file in manifest.files_of(row_of(eu, *day))] == [str(drops / "eu/20200101.csv")]
    assert manifest.files_of(row_of(asia, *day)) == ()
    with pytest.raises(FileTimeUnknown, match="nonsense"):
        manifest.files_of(row_of(us, *day))


def test_a_manifest_of_a_source_that_is_wrong_is_refused_at_once(drops: Path) -> None:
    with pytest.raises(InvalidOption):
        FileManifest.listed(source_of(drops, options={"pathGlobFilter": "*"}), "UTC", [ALL])


def test_ten_thousand_files_are_listed_in_half_a_second(drops: Path) -> None:
    for hour in range(100):
        (drops / str(hour)).mkdir()
        for number in range(100):
            (drops / str(hour) / f"orders-2020{1 + hour % 12:02}01{number % 24:02}-{number}.csv").touch()
    source = source_of(drops / "*/*.csv", time="name", name_pattern=r"-(?P<time>\d{10})-", name_format="%Y%m%d%H")
    for one in (source, replace(source, time="modified", name_pattern=None, name_format=None)):
        took: list[float] = []
        while len(took) < 5 and min(took, default=1) > 0.5:
            begun = process_time()  # what others do on the machine should not count
            listed = list_files(one, "UTC", ALL)
            took.append(process_time() - begun)
            assert len(listed) == 10_000
        assert min(took) < 0.5, took
