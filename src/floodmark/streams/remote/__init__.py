"""Homes behind a service: the same streams, writers and readers, over HTTP.

`connect("http://...")` opens one. What a service and its clients send each other is defined once for both, in
`wire`; the service's half is in `floodmark.service`. Only `floodmark.streams.home` imports `backend`. Start with
`backend.RemoteBackend`, then `client.Client`.
"""
