"""The endpoints under /v1, one file a resource: its routes, the forms of its requests and answers, and their checks.

Only `floodmark.service.app` and the middleware import these files. Start with `streams`, the simplest; `writers`
takes marks, by far the most frequent request. The client's half is in `floodmark.streams.remote`.
"""
