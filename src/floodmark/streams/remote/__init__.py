"""Homes behind a service: the same streams, writers and readers, over HTTP.

`connect("http://...")` opens one. What a service and its clients send each other is defined here, once for both: the
service's half is in `floodmark.service`.
"""

from floodmark.streams.remote._backend import RemoteBackend, open_remote

__all__ = ["RemoteBackend", "open_remote"]
