"""Schema migrations of a home.

`history` lists the migrations of all rooms, in order; one that has been released is never changed. `runner`
applies those that a home lacks; only `floodmark.control.home` calls it. To change the schema, append a migration
to `history` and change the table in the `tables` module of its room; a test compares the two.
"""
