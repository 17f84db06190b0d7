"""Why both outcomes of a case differ: said with the figures of the run, and only if they bear it out."""

from collections.abc import Sequence
from datetime import UTC, datetime

from floodmark.spark.demo._outcome import Outcome

NOT_SHOWN = "This run does not show what it was made to show: plain Spark did not do what is told of it here."
MISCOUNTED = "Floodmark did not get it right in this run, which it must: please report it."


def why_lagging(laggard: str, orders: int, minutes: int, plain: Outcome, floodmark: Outcome) -> str:
    """Explain a partition that delivers its orders some minutes after the others."""
    if plain.lost.keys() != {laggard}:
        return NOT_SHOWN
    return _with_floodmark(
        f"Spark's watermark follows the partition that is furthest ahead. {laggard} fell {minutes} minutes behind, so "
        f"{plain.rows_lost:,} of its {orders:,} orders came after their windows had closed, and were dropped.",
        "Floodmark's follows the partition that is furthest behind, so windows stayed open until its orders were in.",
        floodmark,
    )


def why_quiet(quiet: str, last_order: int, idle: str, plain: Outcome, floodmark: Outcome) -> str:
    """Explain a source that has sent nothing since its last order."""
    if not plain.windows_missing or plain.rows_lost or plain.watermark > last_order:
        return NOT_SHOWN
    return _with_floodmark(
        f"Spark's watermark is the lowest of its streams. The last order of {quiet} is of {_clock(last_order)}, so the "
        f"watermark stays at {_clock(plain.watermark)} until {quiet} speaks again, and {plain.windows_missing} windows "
        f"with {plain.rows_waiting:,} orders stay open.",
        f"Floodmark left {quiet} out once it had been silent for {idle}, and time went on to "
        f"{_clock(floodmark.watermark)}.",
        floodmark,
    )


def why_a_row_from_the_future(
    culprit: str, its_time: int, orders_after: Sequence[int], future: str, plain: Outcome, floodmark: Outcome
) -> str:
    """Explain a row whose time is decades ahead, with so many orders in each batch after its own."""
    spared = _batches_spared(orders_after, plain.rows_lost)
    if spared is None or plain.watermark <= floodmark.watermark:
        return NOT_SHOWN
    return _with_floodmark(
        f"One row of {culprit} says {_day(its_time)}, and took Spark's watermark to {_day(plain.watermark)}. Whatever "
        f"came more than {spared} batch{'' if spared == 1 else 'es'} later, from any partition, was late: "
        f"{plain.rows_lost:,} orders were dropped.",
        f"Floodmark does not let a row that is more than {future} ahead of the clock move time; its watermark "
        f"ended at {_clock(floodmark.watermark)}.",
        floodmark,
    )


def _batches_spared(orders: Sequence[int], lost: int) -> int | None:
    """Return after how many batches all orders were lost, or None if it is not so.

    >>> _batches_spared([5, 3, 2], lost=5), _batches_spared([5, 3, 2], lost=4), _batches_spared([5, 3, 2], lost=0)
    (1, None, None)
    """
    return next((number for number in range(len(orders)) if 0 < lost == sum(orders[number:])), None)


def _with_floodmark(plain_says: str, floodmark_says: str, floodmark: Outcome) -> str:
    return f"{plain_says} {floodmark_says if floodmark.is_right else MISCOUNTED}"


def _clock(micros: int) -> str:
    # Floodmark tells Spark the last millisecond before its watermark.
    return f"{_moment(micros + 500_000):%H:%M:%S} UTC"


def _day(micros: int) -> str:
    return f"{_moment(micros):%Y-%m-%d}"


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros // 1_000_000, UTC)
