"""Data of other libraries in and out: one module per foreign format."""
