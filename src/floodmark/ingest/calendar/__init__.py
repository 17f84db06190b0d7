"""The calendar of a job: time zones, bounds, sets of ranges, and the grid that cuts time into periods.

Pure code without I/O; it imports nothing else of `ingest`, and everything else may import it. All times are int64
microseconds since the epoch. Start with `clock` (zones and daylight saving) and `ranges` (sets of half-open ranges),
then `bound` (the values of `from` and `to`) and `grid` (cells).
"""
