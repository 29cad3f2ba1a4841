"""Decode chunks by address, with the functions in numcodecs' own libraries.

numcodecs' wrapper takes a third of the time of a chunk of LZ4, and always decodes all of it.

Invariant: nothing is read or written beyond what is given, whatever the bytes are. Where a library
does not show its functions, or they fail a trial, there is no decoder: numcodecs itself decodes.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

Decoder = Callable[[int, int, int, int, int], bool]
"""Takes the address and the size of a chunk, with its crc32c; the address of the room for all of
it; how many bytes are needed from its start; and the size of the room. Returns whether they are
there; if not, numcodecs says why."""

_CRC_BYTES, _BLOSC_BYTES = 4, 24  # behind a chunk; before its only block
_LEAST_LZ4, _LEAST_ZSTD = 10_904, 10_409  # versions 1.9.4 and 1.4.9
_DATA = (np.arange(4096) // 16).astype(np.uint8)
_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t


@functools.cache
def lz4() -> Decoder | None:
    """Of blosc's chunks of a single LZ4 block. What is behind the bytes needed is not read."""
    from numcodecs import blosc  # noqa: PLC0415 (as in `compression`)

    try:
        library = ctypes.CDLL(blosc.__file__)
        version, whole = library.LZ4_versionNumber(), library.LZ4_decompress_safe
        partly = library.LZ4_decompress_safe_partial
    except (OSError, AttributeError):  # as on Windows
        return None
    whole.argtypes = _POINTER, _POINTER, _INT, _INT
    partly.argtypes = *whole.argtypes, _INT

    def decode(stored: int, size: int, out: int, n_bytes: int, room: int) -> bool:
        block, length = stored + _BLOSC_BYTES, size - _BLOSC_BYTES - _CRC_BYTES
        if n_bytes < room:
            return bool(partly(block, out, length, n_bytes, n_bytes) == n_bytes)
        return bool(whole(block, out, length, room) == room)

    is_sound = version >= _LEAST_LZ4 and _passes(decode, blosc.compress(_DATA, b"lz4", 5, 0))
    return decode if is_sound else None


@functools.cache
def zstd() -> Decoder | None:
    """Of zstd frames, as a whole or not at all, with a context per thread that is kept."""
    from numcodecs import zstd as module  # noqa: PLC0415 (as in `compression`)

    try:
        library = ctypes.CDLL(module.__file__)
        version, create = library.ZSTD_versionNumber(), library.ZSTD_createDCtx
        free, decompress = library.ZSTD_freeDCtx, library.ZSTD_decompressDCtx
    except (OSError, AttributeError):
        return None
    create.restype, free.argtypes = _POINTER, (_POINTER,)
    decompress.argtypes, decompress.restype = (_POINTER, _POINTER, _SIZE, _POINTER, _SIZE), _SIZE
    contexts = threading.local()

    def decode(stored: int, size: int, out: int, n_bytes: int, room: int) -> bool:
        if n_bytes < room:
            return False
        context = getattr(contexts, "one", None)
        if context is None:
            context = contexts.one = create()  # None without memory
            # Not at the end of the process, when other threads may still decode.
            weakref.finalize(threading.current_thread(), free, context).atexit = False
        done = context and decompress(context, out, room, stored, size - _CRC_BYTES)
        return bool(done == room)

    is_sound = version >= _LEAST_ZSTD and _passes(decode, module.compress(_DATA, 1))
    return decode if is_sound else None


def _passes(decode: Decoder, payload: Any) -> bool:
    """Whether what it says that it decodes is there, and it refuses half a payload."""
    stored, out = np.frombuffer(bytes(payload) + bytes(_CRC_BYTES), np.uint8), np.zeros_like(_DATA)
    source, into, size, half = stored.ctypes.data, out.ctypes.data, out.size, out.size // 2
    if decode(source, stored.size, into, half, size) and (out[:half] != _DATA[:half]).any():
        return False
    has_all = decode(source, stored.size, into, size, size) and np.array_equal(out, _DATA)
    return has_all and not decode(source, stored.size // 2, into, size, size)
