"""Kafka topics as a bound source.

`bound_topics` is the way in; `partitions` has the pure rules; `times` reads marks topics and keeps reported event times
in the home. Only `bindings` and `spark` import this folder. The Kafka client is imported only when topics are bound.
"""
