"""Stores that somebody spoilt."""
