"""Data of other libraries in and out: about a module per foreign format."""
