"""The store of a home: streams, writers, marks, transactions and groups in SQL tables, and the embedded event log.

Each change is one conditional transaction; what lost a race is retried. `floodmark.streams.backend` puts these
parts together, `controller` and `kafka/` use them; `writers/`, `readers/` and `remote/` never import them. Start
with `tables`, then `log` (events), `registry` (marks of writers) and `watermarks` (read, decide, store).
"""
