"""Replay buffers of other libraries, by their own names and signatures, on an mmreplay store.

Invariant: nothing here stores, stacks or draws by means of its own; arguments and results take the
shape that the other library gives them, and that is all.
"""
