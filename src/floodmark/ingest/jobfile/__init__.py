"""Job files: a job as TOML, or as a properties file of DIL, read and written.

It imports `job` and `calendar`; other rooms use `load_job`, `read_job` and `job_text` from `floodmark.ingest`. Start
with `job_file`; `tables` reads typed keys and finds their lines, `sections` turns tables into the objects of a job.
"""
