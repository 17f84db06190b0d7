"""Streams in the store of a home: streams, writers, marks, transactions, groups, and the embedded event log.

Each change is one conditional transaction; the loser of a race retries. `floodmark.streams.backend` combines these
classes, and `controller` and `kafka/` use them; `writers/`, `readers/` and `remote/` never import them. Start with
`tables`, then `log` (events), `registry` (marks of writers) and `watermarks` (read, decide, store).
"""
