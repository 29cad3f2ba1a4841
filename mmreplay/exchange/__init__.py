"""Data of other libraries in and out: one module a foreign format, both directions."""
