"""Disks that fill up, fail or are cut off."""
