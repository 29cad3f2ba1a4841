"""Replay buffers of other libraries, with their names and signatures, on an mmreplay store.

Invariant: this package only converts arguments and results; mmreplay stores, stacks and draws.
"""
