"""The rules of reader groups: their state, how it changes, who reads which segment, and checkpoints.

Pure: a function takes the state, the facts about the streams and the time, and returns the next state. The readers
of a program are in `floodmark.streams.readers`, the store of groups in `floodmark.streams.local.groups`. Start
with `state.GroupState`, then `transitions`.
"""
