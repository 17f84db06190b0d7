"""Marks and watermarks: what writers claim, the watermark that follows, the marks log, and windows over it.

Pure rules: no clock, no store; the time is an argument. It imports `floodmark.streams.layout` only, and the rest
of `floodmark.streams` may import it. Start with `writer_record` (which marks are accepted), then `watermark`
(what to append to the marks log), `log` (lookups by time and by cut) and `windows` (where a reader is in time).
"""
