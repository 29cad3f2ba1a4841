"""Stores on object storage: push, pull, and the objects that they are there."""
