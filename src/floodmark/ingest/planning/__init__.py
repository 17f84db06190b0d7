"""Coverage and plans: what a job has read, and what it has to read now.

Pure code: coverage and a time go in, a plan comes out. It imports `calendar` and `job`; `store`, `run` and `ingestion`
import it. Start with `plan`; `coverage` is its input, and `dil_rules` plans exactly as LinkedIn's DIL does, for jobs
with `rules = "dil"`.
"""
