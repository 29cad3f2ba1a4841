"""Packed arrays as the page reads them."""

import json
import struct

import numpy as np

_ALIGN = 8


def unpack(data):
    """What `pack` was given, with the dtypes as they were sent: how the page reads it."""
    (length,) = struct.unpack_from("<I", data)
    about = json.loads(data[4 : 4 + length])
    offset, arrays = 4 + length, {}
    for name, dtype, shape in about.pop("arrays"):
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data, dtype, count, offset).reshape(shape)
        size = arrays[name].nbytes
        offset += size + -size % _ALIGN
    return arrays, about
