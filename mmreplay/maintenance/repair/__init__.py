"""A sound store of what is sound in a damaged one."""
