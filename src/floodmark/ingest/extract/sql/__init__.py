"""Rows of SQL databases, read by ranges of a watermark column.

Start with `split`: what one task reads. `statements` (the SQL) and `columns` (the types) are pure. The readers are
imported only when used, since their drivers are optional: `postgres` and `adbc` (SQLite) use ADBC, `alchemy` reads all
other databases.
"""
