"""Codecs of record values: JSON and Avro to Arrow columns, and Arrow rows to JSON.

`json_decoder`, `json_encoder` and `avro` build on `values`: the result of decoding, the supported column types, and
dates and timestamps as text. `streams` and `spark` import this folder; it does no I/O. Start with `values`.
"""
