"""The endpoints under /v1, one file for each resource: routes, request and response models, checks.

Only `floodmark.service.app` imports these files. Start with `streams`, the simplest; `writers` takes marks, by far the
most frequent request. The client side is `floodmark.streams.remote`.
"""
