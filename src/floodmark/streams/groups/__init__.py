"""The rules of reader groups: their state, its transitions, the assignment of segments to readers, and checkpoints.

Pure functions: each takes the state, facts about the streams and the current time, and returns the next state. Any
module of `floodmark.streams` may import this folder. `floodmark.streams.readers` has the readers that programs use,
`floodmark.streams.local.groups` stores the states.
Start with `state.GroupState`, then `transitions`.
"""
