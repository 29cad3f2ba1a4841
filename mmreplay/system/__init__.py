"""The operating system: every call that reads, maps, locks or changes files."""
