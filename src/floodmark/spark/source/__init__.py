"""Streams and Kafka topics in Spark: the format "floodmark", whose rows are bound to timestamps.

`dataframes` has what a program calls (`read_stream`, `read_topics`, `window`, `read_bindings`). `bound_reader` says
where batches begin and end, for both kinds; `stream_*` and `topic_*` add the options, columns and rows of one
kind each. Every process that Spark starts for a query imports `stream_reader` (through `pyspark_floodmark`), and
tasks import the reader modules: keep all but `dataframes` light, and `topic_*`, which need Kafka's client, out
of the imports of the others. `floodmark.spark.sink` uses `open_home`.
"""
