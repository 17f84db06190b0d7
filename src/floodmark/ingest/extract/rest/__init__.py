"""Rows of a REST service that answers in JSON.

`split` reads all pages of a cell; `client` sends requests, retries and paces them. `request` (templates, credentials,
retry rules), `paging` (answers, what is asked next) and `values` (types and arrays) are pure.
"""
