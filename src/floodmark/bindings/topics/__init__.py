"""Kafka topics as a bound source.

`bound_topics` is the way in; `partitions` has the rules, without clock and I/O; `times` reads marks topics and keeps
reported event times in the home. Kafka's client is imported only when topics are bound.
"""
