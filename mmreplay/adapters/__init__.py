"""Adapters: the same batches for the frameworks that people train with, one module each.

Invariant: no adapter is imported by another room, and each needs its own framework only.
"""
