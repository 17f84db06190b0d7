"""The database that a home is kept in: SQLite or PostgreSQL behind one protocol.

Start with `base`: the protocol, and the two inserts that both databases have. `sqlite` and `postgres` hold
everything that is particular to one database; the rest of Floodmark writes portable SQL. `change_counters`
lets processes poll cheaply for changes. Rooms that keep tables import `base` and `change_counters`.
"""
