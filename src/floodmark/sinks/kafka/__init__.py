"""Kafka topics as targets: the rows of a batch and its progress record are written in one transaction.

`floodmark.sinks` loads `target` and `parallel` on first use, since they need the Kafka client; `rows` does not.
Only `floodmark.sinks` and `floodmark.spark` import this folder. Start with `target` (one writer, one
transaction a batch); `parallel` builds on it (one transaction for each group of partitions).
"""
