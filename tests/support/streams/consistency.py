"""Whether everything in a home of streams still fits together."""

from sqlalchemy import func, select, text

from floodmark.streams import StreamHome
from floodmark.streams.local.tables import BATCHES, WRITERS


def check_consistent(home: StreamHome) -> int:
    """Fail unless each segment has all of its events once, and each writer's events are counted; return the events."""
    total = 0
    with home.home.read() as connection:
        if connection.dialect.name == "sqlite":
            assert connection.execute(text("PRAGMA integrity_check")).scalars().all() == ["ok"]
        stored = connection.execute(
            select(BATCHES.c.stream_id, BATCHES.c.writer, func.sum(BATCHES.c.events)).group_by(
                BATCHES.c.stream_id, BATCHES.c.writer
            )
        ).all()
        numbers = {(row.stream_id, row.writer): row.next_number for row in connection.execute(select(WRITERS))}
    for stream_id, writer, events in stored:
        assert numbers[stream_id, writer] == events, "a writer has a number for each of its events"
    for stream in home.streams():
        stream.why()
        for segment, end in stream.ends().items():
            at = 0
            for chunk in stream.read(segment):
                assert chunk.first == at
                chunk.batch.validate(full=True)
                at += chunk.batch.num_rows
            assert at == end, "a segment has as many events as its end says"
            total += at
    for group in home.groups():
        assert group.state.load(group.state.save()) == group.state
    return total
