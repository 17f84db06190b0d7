"""Job files: a job as TOML, or as a properties file of DIL, read and written.

Imports `job`; `cli` and `spark` use `load_job` from the room itself. Start with `job_file`; `tables` reads keys with
care and knows their lines, `sections` turns tables into the parts of a job.
"""
