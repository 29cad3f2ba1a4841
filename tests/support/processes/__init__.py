"""Processes that write and read stores, and are killed."""
