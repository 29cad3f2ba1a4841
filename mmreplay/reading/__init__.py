"""Stores opened for reading, while writers go on."""
