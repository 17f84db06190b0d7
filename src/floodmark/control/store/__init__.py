"""The database of a home: SQLite or PostgreSQL behind one protocol.

Start with `base`: the protocol, and the portable insert and upsert. `sqlite` and `postgres` hold everything specific
to one database; the rest of Floodmark writes portable SQL. `change_counters` lets processes poll cheaply for changes.
Rooms with tables of their own import `base` and `change_counters`.
"""
