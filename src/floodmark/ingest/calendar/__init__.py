"""The time of a job: zones and wall clocks, bounds, ranges, and the grid that cuts time into cells.

Pure, and the bottom of this room: imports nothing of it. All moments are int64 microseconds since the epoch. Start
with `clock` for zones and daylight saving, `ranges` for sets of half-open ranges, `bound` for what is written as
`from` and `to`, `grid` for cells.
"""
