"""Marks and watermarks: the marks of writers, the watermark derived from them, the marks log, and time windows.

Pure rules: no store, and the current time is an argument. Of `floodmark.streams` this folder imports only `layout`;
the rest of `floodmark.streams` may import it.
Start with `writer_record` (which marks are accepted), then `watermark` (what to append to the marks log), `log`
(lookups by time and by cut) and `windows` (where a reader is in event time).
"""
