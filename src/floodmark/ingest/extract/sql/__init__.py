"""Rows of SQL databases, read by ranges of a watermark column.

`split` is what one task reads; `statements` writes the SQL, `columns` decides types. Both are pure. The readers are
imported only when they are used, since their drivers are optional: `postgres` and `adbc` (SQLite) by ADBC, `alchemy`
for all others.
"""
