"""The definition of a job: time, units, source, target and limits, and their options.

Pure code: frozen dataclasses that validate themselves, without clock or store; secrets are only references. It imports
`calendar`; everything else in `ingest` may import it. Start with `job`, then `source` and `unit`.
"""
