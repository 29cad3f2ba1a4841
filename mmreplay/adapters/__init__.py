"""Adapters: the same batches for the frameworks that people train with, one module each.

Invariant: no other part of mmreplay imports an adapter, and each needs its own framework only.
"""
