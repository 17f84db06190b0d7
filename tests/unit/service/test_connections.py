"""The pace of clients: when one is too slow to be waited for; and how many connections a process has files for."""

import pytest

from floodmark.service import ServiceLimits, server
from floodmark.service.connections import Pace

# (seconds waited, bytes moved) one after the other, and whether the client is too slow then.
HISTORIES: dict[str, list[tuple[float, int, bool]]] = {
    "at once": [(0, 10**6, False), (0, 10**6, False)],
    "nothing": [(9, 0, False), (1, 0, True)],
    "nothing for long": [(100, 0, True)],
    "one byte at a time": [(1.0, 1, False)] * 9 + [(1.0, 1, True)],
    "just fast enough": [(5, 500, False), (5, 500, False), (5, 500, False), (5, 500, False)],
    "a little too slow": [(5, 500, False), (5, 499, True)],
    "a burst counts for one period": [(1, 10**9, False), (9, 0, False), (9, 0, False), (1, 0, True)],
    "late but much": [(9.9, 0, False), (0.1, 1_000, False)],
}


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
def test_in_every_period_a_client_moves_enough(history: list[tuple[float, int, bool]]) -> None:
    pace = Pace(seconds=10, rate=100)
    assert [pace.is_too_slow(waited, moved) for waited, moved, _ in history] == [slow for _, _, slow in history]


@pytest.mark.parametrize(
    ("files", "most"), [(64, 1), (256, 128), (1024, 896), (2128, 2000), (10**6, 2000), (None, 2000)]
)
def test_there_are_no_more_connections_than_files(
    monkeypatch: pytest.MonkeyPatch, files: int | None, most: int
) -> None:
    monkeypatch.setattr(server, "open_file_limit", lambda: files)
    assert server.fit_file_limit(ServiceLimits(max_connections=2_000)).max_connections == most
