"""Map files into memory, and advise and ask the kernel about the pages of a map.

Invariant: no other module maps a file or calls madvise; a map has the size that its file must have,
keeps no descriptor, and lasts as long as an array over it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.system import checked_reads, platform
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.limits import check_limit

GRANULARITY = mmap.ALLOCATIONGRANULARITY
"""Bytes that the start of a map must be a multiple of: 4 KiB on x86 Linux, 64 KiB on Windows."""

_LARGE_PAGE = 2 << 20
_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000 if platform.LINUX else 0x40
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_RANDOM = 1
_MADV_WILLNEED = 3
_MADV_DONTNEED = 4
_MADV_POPULATE_READ = 22 if platform.LINUX else _MADV_WILLNEED
_MADV_POPULATE_WRITE = 23 if platform.LINUX else _MADV_WILLNEED


def _reserve(size: int, *, writable: bool) -> npt.NDArray[np.uint8]:
    """A range of addresses without memory, which lasts as long as an array over it."""
    if platform.LIBC is None:
        raise OSError(errno.ENOSYS, "no mmap in the C library")
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    # Readable, so that an unmapped row reads as zeros instead of killing the process.
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    # The kernel maps a file with pages of this size where it can, if the address is a multiple.
    more = _LARGE_PAGE if size >= _LARGE_PAGE else 0
    whole = np.frombuffer(mmap.mmap(-1, size + more, flags=flags, prot=prot), np.uint8)
    start = -whole.ctypes.data % _LARGE_PAGE if more else 0
    out = whole[start : start + size]
    out.flags.writeable = writable
    return out


def _put(address: int, descriptor: int, length: int, path: AnyPath, *, writable: bool) -> None:
    """Map a file at an address that was reserved; ReachedLimitError where there is no memory."""
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    flags = mmap.MAP_SHARED | _MAP_FIXED
    found = platform.LIBC.mmap(address, length, prot, flags, descriptor, 0)  # type: ignore[union-attr]
    if found in (_MAP_FAILED, None):
        number = ctypes.get_errno()
        error = OSError(number, os.strerror(number))
        check_limit(error, path)
        raise error


def map_file(
    path: AnyPath, size: int | None = None, *, writable: bool = False
) -> npt.NDArray[np.uint8]:
    """Map a whole file, which must have exactly `size` bytes, if given, and any otherwise."""
    descriptor = checked_reads.open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        found = os.fstat(descriptor).st_size
        checked_reads.check_size(path, found, found or 1 if size is None else size)
        size = found
        if platform.LIBC is None:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return np.frombuffer(mmap.mmap(descriptor, size, access=access), np.uint8)
        try:
            out = _reserve(size, writable=writable)
        except OSError as error:
            check_limit(error, path)
            raise
        _put(out.ctypes.data, descriptor, size, path, writable=writable)
        return out
    finally:
        os.close(descriptor)


def dirty_again(path: AnyPath, start: int, stop: int) -> None:
    """Let the next fsync of a file write its bytes [start, stop) out, even after a failed one."""
    data = map_file(path, writable=True)
    checked_reads.check_size(path, data.size, max(data.size, stop))
    for pages in (data[start : stop : mmap.PAGESIZE], data[stop - 1 : stop]):
        pages[...] = pages.copy()


class Reservation:
    """A range of addresses in which files are mapped side by side; OSError if there is none."""

    def __init__(self, size: int, *, writable: bool = False) -> None:
        """Reserve `size` bytes of addresses; no memory."""
        self.size, self._writable = size, writable
        self.array = _reserve(size, writable=writable)

    def put(self, offset: int, path: AnyPath, size: int) -> None:
        """Map a file of exactly `size` bytes at `offset`, a multiple of `GRANULARITY`."""
        if offset % GRANULARITY or offset < 0 or offset + size > self.size:
            raise ValueError("outside the reservation")
        writable = self._writable
        descriptor = checked_reads.open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            checked_reads.check_size(path, os.fstat(descriptor).st_size, size)
            place = self.array.ctypes.data + offset
            _put(place, descriptor, size, path, writable=writable)
        finally:
            os.close(descriptor)


def advise_random(array: npt.NDArray[Any]) -> None:
    """Tell the kernel not to read ahead: sampled rows have no neighbours."""
    _advise(array.ctypes.data, array.nbytes, _MADV_RANDOM)


def advise_needed(array: npt.NDArray[Any], ranges: list[tuple[int, int]]) -> None:
    """Ask for (start, length) in bytes of a map before they are read, all of them at once."""
    address = array.ctypes.data
    for start, length in ranges:
        _advise(address + start, length, _MADV_WILLNEED)


def populate(array: npt.NDArray[Any]) -> None:
    """Give every page of a map its memory in one call, where the kernel can."""
    _advise(array.ctypes.data, array.nbytes, _MADV_POPULATE_WRITE)


def populate_read(array: npt.NDArray[Any]) -> None:
    """Fill the page tables of a map, whose pages are in memory, in one call."""
    _advise(array.ctypes.data, array.nbytes, _MADV_POPULATE_READ)


def release(array: npt.NDArray[Any]) -> None:
    """Let pages of a map of files no longer count as memory of the process; the system has them."""
    _advise(array.ctypes.data, array.nbytes, _MADV_DONTNEED)


def _advise(address: int, length: int, advice: int) -> None:
    if platform.LIBC is not None:
        start = address - address % mmap.PAGESIZE
        platform.LIBC.madvise(start, length + address - start, advice)


def resident(array: npt.NDArray[Any]) -> float:
    """Which part of a map's pages is in memory, in [0, 1]; 0 where the system does not tell."""
    start = array.ctypes.data
    first = start - start % mmap.PAGESIZE
    length = array.nbytes + start - first
    pages = np.zeros(-(-length // mmap.PAGESIZE), np.uint8)
    if platform.LIBC is None or platform.LIBC.mincore(first, length, pages.ctypes.data) != 0:
        return 0.0
    return float((pages & 1).mean())
