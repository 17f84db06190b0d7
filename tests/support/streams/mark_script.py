"""A small language for scenarios of marks, one step a line.

note w 100 {0: 10}         a mark is accepted; `-> time went back` if it is not
open w, close w, idle w    `-> !code` for an error; close and idle may name a last position
at 50                      the clock
look -> 100 102 {0: 20}    the leader looks: what it appends (lower, upper, cut), or `-` for nothing; `unknown`
                           and `idle` stand with the cut; behind a `|` stands who counted
holds w until 60           why the last look appended nothing
w is alive, w is gone      what is known of a writer
w has {0: 10}              its position
"""

import ast
import re
from collections.abc import Sequence

from floodmark.errors import FloodmarkError
from floodmark.streams import EntryKind
from floodmark.streams.marks.watermark import Decision, Emit, Wait, WatermarkRules
from support.streams.played_stream import Epoch, PlayedStream, layout_of

ONE: Sequence[Epoch] = [{0: (0, 1)}]
TWO: Sequence[Epoch] = [{0: (0, 0.5), 1: (0.5, 1)}]


def show(decision: Decision) -> str:
    if isinstance(decision, Wait):
        return "-"
    entry = decision.entry
    cut = str(dict(entry.cut))
    return f"{entry.lower} {entry.upper} {cut}" if entry.kind is EntryKind.WATERMARK else f"{entry.kind.value} {cut}"


def run(rules: WatermarkRules, epochs: Sequence[Epoch], script: str) -> None:
    stream = PlayedStream(layout_of(epochs), rules)
    decision: Decision | None = None
    for number, line in enumerate(filter(None, map(str.strip, script.splitlines())), start=1):
        action, _, expected = (part.strip() for part in line.partition("->"))
        found = "-"
        if action == "look":
            decision = stream.cycle()
            found = show(decision)
            who = ",".join(decision.entry.writers) if isinstance(decision, Emit) else ""
            found = f"{found} | {who}" if "|" in expected else found
        elif action.startswith("holds"):
            assert isinstance(decision, Wait), (number, line)
            found = f"holds {','.join(decision.holders)} until {decision.until}"
            expected = action
        else:
            found, expected = play(stream, action, expected)
        assert found == (expected or "-"), f"step {number}, {line!r}: {found}"


def play(stream: PlayedStream, action: str, expected: str) -> tuple[str, str]:
    word, _, rest = action.partition(" ")
    try:
        if word == "note":
            writer, time, position = rest.split(" ", 2)
            return stream.note(writer, int(time), ast.literal_eval(position)).value, expected or "accepted"
        if word == "at":
            stream.now = int(rest)
        elif word == "open":
            stream.open(rest)
        elif word in ("close", "idle"):
            writer, _, position = rest.partition(" ")
            moved = ast.literal_eval(position) if position else None
            stream.close(writer, moved) if word == "close" else stream.idle(writer, moved)
        elif match := re.fullmatch(r"(\w+) is (.+)", action):
            record = stream.records.get(match[1])
            found = "gone" if record is None else "set aside" if record.set_aside else record.state.value
            return found, match[2]
        elif match := re.fullmatch(r"(\w+) has (.+)", action):
            return str(dict(stream.records[match[1]].position)), match[2]
        else:
            raise AssertionError(action)
    except FloodmarkError as error:
        return f"!{error.code}", expected
    return "-", expected
