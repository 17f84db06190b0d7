"""The tables of ingestion in a home, and the statements that read and write them.

Functions over one SQLAlchemy connection; the caller owns the transaction. Imports `planning` and `job`; only `run` and
`ingestion` import it. Start with `tables`; `coverage` keeps what is known of units, `jobs` keeps jobs, runs and
events.
"""
