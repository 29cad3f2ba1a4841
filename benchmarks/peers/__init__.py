"""Replay buffers and readers of others beside mmreplay, in one run: ``make bench-peers``.

Each library works in a process of its own (`worker`), on the same steps (`steps`), set up as its
own documents say for the least memory (`ours`, `buffers`, `tensors`, `arrays`, `reader`, which
`catalogue` lists). `measure` takes turns between the processes (`session`); `page` and `plots` show
the figures. `installed` is for the other benchmarks: what stands in mmreplay's own environment.
"""
