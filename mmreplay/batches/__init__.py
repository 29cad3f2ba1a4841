"""Ids and columns in, batches out: stacks, n-step returns, sequences."""
