"""Stores as pictures: films, contact sheets and curves."""
