"""What a job has read, and what it has to read now.

Pure: coverage and a moment go in, a plan comes out. Imports `calendar` and `job`; `store`, `run` and `ingestion`
import it. Start with `plan`; `coverage` is what a plan is made from; `dil_rules` plans as LinkedIn's DIL does, for
jobs that ask for it.
"""
