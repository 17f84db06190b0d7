"""Kafka as the log of streams: one topic for each stream, one partition for each segment, one record for each event.

Kafka cannot seal a partition and does not fence writers by id. These modules add both:

| module | holds |
|---|---|
| `log` | start here: `KafkaLog`, and a flush in progress |
| `records` | record headers; a flush is valid if its segments are still open after Kafka has acknowledged it |
| `connections` | clusters, topics, and an idempotent producer that keeps the order of records |
| `sealing` | the store decides where a segment ends, at an offset behind all valid records |
| `commits` | a transaction is written by any process that commits it, as one Kafka transaction |
| `marks_topic` | the marks log, published for readers of Kafka |

Only `floodmark.streams.backend` imports this folder, and only when a stream needs it.
"""
