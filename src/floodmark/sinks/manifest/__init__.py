"""Targets that cannot write all rows in one transaction: rows are written first, and count once a manifest names them.

`target` has the manifests, the rule which of them count, and the protocol for writing a batch. `delta`, `files`
and `topic` are the logs that keep manifests: in the commits of a Delta table, in files, in a progress topic.
Only `floodmark.spark` imports this folder. Start with `target`.
"""
