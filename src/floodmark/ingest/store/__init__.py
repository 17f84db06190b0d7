"""The tables of ingestion in the home's store, and the statements that read and write them.

Functions over one SQLAlchemy connection; the caller owns the transaction. It imports `planning` and `job`; only `run`
and `ingestion` import it. Start with `tables`; `coverage` stores the coverage of units, `jobs` stores jobs, runs and
events.
"""
