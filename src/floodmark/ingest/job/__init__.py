"""What a user writes: the job, its time, units, source, target, and the values their options may have.

Pure: frozen dataclasses that are checked as they are made. No clock, no store; a secret is only referred to. Imports
`calendar`; everything else in this room imports it. Start with `job`, then `source` and `unit`.
"""
