"""Streams and Kafka topics in Spark: the format "floodmark", whose rows are bound to timestamps.

Start reading at `dataframes` (`read_stream`, `read_topics`, `window`, `read_bindings`). `bound_reader` decides where
batches begin and end, for streams and topics; `stream_*` and `topic_*` add the options, columns and rows of each kind.
Every process that Spark starts for a query imports `stream_reader` (through `pyspark_floodmark`), and tasks import
the reader modules: keep all but `dataframes` light. Only `topic_*` may import Kafka's client. `floodmark.spark.sink`
uses `open_home`.
"""
