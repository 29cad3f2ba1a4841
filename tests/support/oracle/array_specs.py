"""Specs and attributes that the tests of writing and of reading metadata have in common."""

import numpy as np

from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec

LZ4, ZSTD = layout.CODECS["lz4"], layout.CODECS["zstd"]
GZIP = {"name": "gzip", "configuration": {"level": 5}}
BITS = {
    "name": "blosc",
    "configuration": LZ4["configuration"]
    | {"typesize": 2, "cname": "zstd", "clevel": 3, "shuffle": "bitshuffle"},
}
UINT8 = np.dtype("uint8")
SPECS = [
    ArraySpec("rewards", (), np.dtype("float32"), 65_536),
    ArraySpec("frames", (84, 84), UINT8, 4096, 16, LZ4),
    ArraySpec("frames/a", (3,), np.dtype("float16"), 8, 4, ZSTD),
    ArraySpec("frames/b", (2, 2, 2), np.dtype("uint16"), 12, 12, BITS),
    ArraySpec("frames/c", (), np.dtype("int64"), 5, 1, GZIP),
    ArraySpec("extras/x", (1, 2, 3, 4, 5, 6, 7, 8), np.dtype("bool"), 3, dims=tuple("abcdefghi")),
    ArraySpec("frames", (3, 64, 64), UINT8, 8, width=3, dims=("step", "env", "y", "x")),
    ArraySpec("frames", (3, 84, 84), UINT8, 8, 4, ZSTD, 3),
]


def root(kind="lane"):
    own = {
        "format": 1,
        "kind": kind,
        "uuid": "0123456789abcdef" * 2,
        "schema": {},
        "capacity": None,
        "padding": "reset",
    }
    if kind == "lane":
        numbers = {"rows": 10, "first": 3, "finals": 4, "first_final": 1, "episodes_before": 2}
        own |= {"environments": None, **numbers, "closed": True}
    return own
