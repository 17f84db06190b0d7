"""Kafka as the log of streams: a topic a stream, a partition a segment, an event a record.

Kafka cannot seal a partition, and does not know that a writer id is used once. What makes up for that:

| module | holds |
|---|---|
| `log` | start here: `KafkaLog`, and a flush on its way into Kafka |
| `records` | what a record says of its writer; a flush counts if its segments are open after Kafka has it |
| `connections` | clusters and topics; records arrive once and in order, as long as this process lives |
| `sealing` | a segment ends where the store says, which asks Kafka for a place behind all that counts |
| `commits` | a transaction is written by whichever process commits it, and is all in Kafka or not at all |
| `marks_topic` | the marks log for every reader of Kafka |

Only `floodmark.streams.backend` imports this folder, and only when a stream needs it.
"""
