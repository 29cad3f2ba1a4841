"""What a store must say: a model in plain Python lists, and comparisons with it."""
