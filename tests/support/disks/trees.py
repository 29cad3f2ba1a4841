"""A directory as a whole: what stands in it, and a byte of it changed.

Invariant: nothing here knows what a store is; two directories with equal contents are the same.
"""


def contents(path):
    """Everything below a directory, by its path from there: a file's bytes, of others None."""
    return {
        str(one.relative_to(path)): one.read_bytes() if one.is_file() else None
        for one in path.rglob("*")
    }


def files(path):
    """Every file below a directory, by its path from there, ascending."""
    return sorted(str(one.relative_to(path)) for one in path.rglob("*") if one.is_file())


def names(path):
    """What stands in a directory, ascending."""
    return sorted(one.name for one in path.iterdir())


def flip(path, at=3):
    """Change a bit of one of a file's bytes."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)
