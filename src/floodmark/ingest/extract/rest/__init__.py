"""Rows of a REST service that responds with JSON.

Start with `split`, which reads all pages of a cell. `client` sends requests, retries and paces them. `request`
(templates, credentials, retry rules), `paging` (responses and the next request) and `values` (types and arrays) are
pure.
"""
