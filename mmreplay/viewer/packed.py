"""Arrays as bytes for the page: a length, a JSON header, and the arrays one after the other.

Invariant: every array starts at a multiple of eight bytes, so that the page needs no copies.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmreplay.ids import Array

_ALIGN = 8


def pack(arrays: Mapping[str, Array], **about: Any) -> bytes:
    """Arrays and JSON values as bytes; static/net.js unpacks them.

    The header is ``{"arrays": [[name, dtype, shape], ...], **about}``. float16 is sent as float32
    and bool as uint8: browsers lack these types.
    """
    sent = {name: _as_sent(array) for name, array in arrays.items()}
    listed = [[name, array.dtype.name, array.shape] for name, array in sent.items()]
    header = json.dumps({"arrays": listed, **about}, allow_nan=False).encode()
    header += b" " * (-(4 + len(header)) % _ALIGN)
    parts = [struct.pack("<I", len(header)), header]
    for array in sent.values():
        data = array.tobytes()
        parts += [data, bytes(-len(data) % _ALIGN)]
    return b"".join(parts)


def _as_sent(array: Array) -> Array:
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
