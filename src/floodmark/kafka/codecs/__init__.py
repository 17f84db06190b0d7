"""Codecs of record values: JSON and Avro to Arrow columns, and Arrow rows to JSON.

`json_decoder`, `json_encoder` and `avro` build on `values`, which has the result of decoding, the supported column
types and the text of dates and timestamps. Nothing here talks to a broker.
"""
