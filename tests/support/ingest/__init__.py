"""Helpers of tests of ingestion: jobs, a REST server, landings."""
