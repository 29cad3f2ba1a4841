"""Actors on many machines, one store beside the learner: see docs/distributed.md.

Invariant: blocks, sender, receiver and limiter know nothing of what carries their calls.
"""
