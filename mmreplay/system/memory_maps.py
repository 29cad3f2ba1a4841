"""Map files into memory, and advise and ask the kernel about the pages of a map.

Invariant: no other module maps a file or calls madvise; a map has the size that its file must have,
keeps no descriptor, and lasts as long as an array over it.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.system import checked_reads, platform
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.limits import check_limit

GRANULARITY = mmap.ALLOCATIONGRANULARITY
"""Bytes that the start of a map must be a multiple of: 4 KiB on x86 Linux, 64 KiB on Windows."""

_MAP_FIXED = 0x10
_MAP_ANON = 0x20 if platform.LINUX else 0x1000
_MAP_NORESERVE = 0x4000 if platform.LINUX else 0x40
_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_RANDOM = 1
_MADV_WILLNEED = 3
_MADV_POPULATE_READ = 22 if platform.LINUX else _MADV_WILLNEED
_MADV_POPULATE_WRITE = 23 if platform.LINUX else _MADV_WILLNEED


def _mmap(address: int, length: int, prot: int, flags: int, descriptor: int) -> int:
    if platform.LIBC is None:
        raise OSError(errno.ENOSYS, "no mmap in the C library")
    out = platform.LIBC.mmap(address or None, length, prot, flags, descriptor, 0)
    if out == _MAP_FAILED or out is None:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(out)


def _map_shared(
    address: int, length: int, prot: int, flags: int, descriptor: int, path: AnyPath
) -> int:
    """Map a file; ReachedLimitError where there is no memory for it."""
    try:
        return _mmap(address, length, prot, mmap.MAP_SHARED | flags, descriptor)
    except OSError as error:
        check_limit(error, path)
        raise


class Map:
    """A file's bytes as a numpy array that keeps no descriptor.

    Python's own mmap keeps one for each map, which ends thousands of maps at the limit of open
    files. The map lives as long as an array over it.
    """

    __slots__ = ("__array_interface__", "__weakref__", "_release")

    def __init__(self, address: int, length: int, *, writable: bool) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (length,),
            "typestr": "|u1",
            "data": (address, not writable),
        }
        libc = platform.LIBC
        self._release: Callable[[], Any] = lambda: libc.munmap(address, length) if libc else None

    def __del__(self) -> None:
        self._release()


def map_file(
    path: AnyPath, size: int | None = None, *, writable: bool = False
) -> npt.NDArray[np.uint8]:
    """Map a whole file, which must have exactly `size` bytes, if given, and any otherwise.

    Raises CorruptStoreError for another size: a short map would end in SIGBUS.
    """
    descriptor = checked_reads.open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
    try:
        found = os.fstat(descriptor).st_size
        checked_reads.check_size(path, found, found or 1 if size is None else size)
        size = found
        if platform.LIBC is None:
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            return np.frombuffer(mmap.mmap(descriptor, size, access=access), np.uint8)
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _map_shared(0, size, prot, 0, descriptor, path)
        return np.asarray(Map(address, size, writable=writable))
    finally:
        os.close(descriptor)


def dirty_again(path: AnyPath, start: int, stop: int) -> None:
    """Let the next fsync of a file write its bytes [start, stop) out, whatever came of the last.

    After one that failed the kernel holds pages for clean that never reached the disk: an fsync
    alone would write nothing, and say that all is well. So a byte of each page is stored onto
    itself; nobody else writes the file.
    """
    data = map_file(path, writable=True)
    checked_reads.check_size(path, data.size, max(data.size, stop))
    for pages in (data[start : stop : mmap.PAGESIZE], data[stop - 1 : stop]):
        pages[...] = pages.copy()


class Reservation:
    """A range of addresses in which files are mapped side by side.

    MAP_FIXED replaces whatever lies at its address, so it is only ever used inside a range that
    was reserved here. OSError: no such range; the caller maps the files one by one then.
    """

    def __init__(self, size: int, *, writable: bool = False) -> None:
        """Reserve `size` bytes of addresses; no memory."""
        self.size = size
        self._prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        # Readable, so that a row nobody mapped reads as zeros and not as a dead process.
        flags = mmap.MAP_PRIVATE | _MAP_ANON | _MAP_NORESERVE
        self._address = _mmap(0, size, self._prot, flags, -1)
        self.array: npt.NDArray[np.uint8] = np.asarray(Map(self._address, size, writable=writable))

    def put(self, offset: int, path: AnyPath, size: int) -> None:
        """Map a file of exactly `size` bytes at `offset`, a multiple of `GRANULARITY`."""
        if offset % GRANULARITY or offset < 0 or offset + size > self.size:
            raise ValueError("outside the reservation")
        writable = self._prot & mmap.PROT_WRITE
        descriptor = checked_reads.open_regular(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            checked_reads.check_size(path, os.fstat(descriptor).st_size, size)
            place = self._address + offset
            _map_shared(place, size, self._prot, _MAP_FIXED, descriptor, path)
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
    """Give every page of a map its memory now, in one call, and not one fault at a time later.

    Where the kernel cannot (Linux before 5.14, other systems), nothing happens.
    """
    _advise(array.ctypes.data, array.nbytes, _MADV_POPULATE_WRITE)


def populate_read(array: npt.NDArray[Any]) -> None:
    """Fill the page tables of a map, whose pages are in memory, in one call."""
    _advise(array.ctypes.data, array.nbytes, _MADV_POPULATE_READ)


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
