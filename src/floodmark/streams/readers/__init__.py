"""Reader groups: readers that share the segments of streams, and come to one window in time together.

What is public is in `floodmark.streams`.
"""
