"""The HTTP client: the streams, writers and readers of a home behind a service.

`connect("http://...")` opens one. `wire` defines the messages for both sides; the server side is `floodmark.service`.
Only `floodmark.streams.home` imports `backend`. Start with `backend.RemoteBackend`, then `client.Client`.
"""
