"""Samplers: an index in, ids out; nothing of storage."""
