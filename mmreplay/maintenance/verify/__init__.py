"""Whether a store is what it was when it was written."""
