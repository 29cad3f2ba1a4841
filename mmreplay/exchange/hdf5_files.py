"""HDF5 files: opening those of an import, and new ones.

Invariant: what is read is in the file itself, and decodes to the size of its shape. HDF5 follows
links to any other file and virtual datasets, and decompresses without a bound; so a whole file is
checked before its numbers are read.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import check_at_once, check_claim, check_row

__all__ = ["new_hdf5", "open_hdf5"]

_MOST_DEPTH = 100
"""HDF5 itself recurses, and overflows the stack."""

_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF = 1, 2, 3, 32000
_COMPRESSIONS = (_DEFLATE, _LZF)
_SMALL_BYTES = 256 << 10
"""Chunks of fewer bytes need no check: deflate expands them at most 1,032 times."""

_PIECE_BYTES = 1 << 20


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """The ``h5py.File``, for reading.

    Raises FormatError for external links, external storage and virtual datasets, rows and chunks
    that are too large, and compression other than gzip and lzf; MissingExtraError without h5py.
    """
    with need("h5py").File(path, "r") as file:
        _check(file, path)
        yield file


@contextmanager
def new_hdf5(path: Path) -> Iterator[Any]:
    """A new ``h5py.File``; raises OSError if it cannot be written as a whole."""
    h5py = need("h5py")
    with _Written(path, "x+b") as target:
        file = h5py.File(target, "w")
        try:
            yield file
        finally:
            file.close()
            if target.error is not None:  # HDF5 may hide it
                raise target.error


class _Written(io.FileIO):
    """Once a write has failed, ignores further writes.

    HDF5 repeats a failed write when the file is closed and when the process ends, and aborts the
    process if that fails too.
    """

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        """All of it."""
        left = memoryview(data).cast("B")
        while len(left) and self.error is None:
            left = left[self._try(super().write, left) :]
        return memoryview(data).nbytes

    def truncate(self, size: int | None = None, /) -> int:
        """As of a file."""
        self._try(super().truncate, size)
        return self.tell() if size is None else size

    def _try(self, call: Callable[[Any], int | None], given: Any) -> int:
        if self.error is not None:
            return 0
        try:
            return call(given) or 0
        except OSError as error:
            self.error = error
            raise


def _check(file: Any, path: Path) -> None:
    h5py = need("h5py")
    todo = [(h5py.h5g.open(file.id, b"/"), "", 0)]
    datasets: list[tuple[Any, str]] = []
    seen = {_place(todo[0][0])}
    while todo:
        group, above, depth = todo.pop()
        links: list[tuple[bytes, int]] = []
        group.links.iterate(
            lambda name, about, links=links: links.append((name, about.type)), info=True
        )
        for name, kind in links:
            where = f"{above}/{name.decode(errors='replace')}"
            if kind == h5py.h5l.TYPE_SOFT:  # its target in this file is visited anyway
                continue
            if kind == h5py.h5l.TYPE_EXTERNAL:
                other, inside = (one.decode(errors="replace") for one in group.links.get_val(name))
                raise _refused(path, where, "a link to", f"{inside!r:.80} in {other!r:.200}")
            if kind != h5py.h5l.TYPE_HARD:
                raise _refused(path, where, "a link of", f"type {kind}")
            one = h5py.h5o.open(group, name)
            if isinstance(one, h5py.h5d.DatasetID):
                datasets.append((one, where))
            elif isinstance(one, h5py.h5g.GroupID) and (place := _place(one)) not in seen:
                if depth == _MOST_DEPTH:
                    raise FormatError(
                        f"{path}: {where[:80]!r}...: expected at most {_MOST_DEPTH} nested "
                        f"groups, found more"
                    )
                seen.add(place)
                todo.append((one, where, depth + 1))
    n_bytes, source_bytes = 0, path.stat().st_size
    for one, where in datasets:
        _check_storage(one, path, where)
        n_bytes += math.prod(one.shape) * one.get_type().get_size()
        check_claim(n_bytes, source_bytes, f"{path}: {where!r:.200}")
        _check_sizes(one, path, where)


def _place(group: Any) -> tuple[int, int]:
    """Identity of a group: it can have several names, and contain itself."""
    about = need("h5py").h5o.get_info(group)
    return about.fileno, about.addr


def _check_storage(dataset: Any, path: Path, where: str) -> None:
    """Raise FormatError for a dataset whose numbers are elsewhere."""
    plist = dataset.get_create_plist()
    if plist.get_external_count():
        other = plist.get_external(0)[0].decode(errors="replace")
        raise _refused(path, where, "numbers in", f"{other!r:.200}")
    if plist.get_layout() == need("h5py").h5d.VIRTUAL:
        raise _refused(path, where, "a virtual dataset of", "others")


def _check_sizes(dataset: Any, path: Path, where: str) -> None:
    """Raise FormatError for rows or chunks that need too much memory."""
    what = f"{path}: {where!r:.200}"
    size, plist = dataset.get_type().get_size(), dataset.get_create_plist()
    check_row(math.prod(dataset.shape[1:]) * size, what)
    if plist.get_layout() != need("h5py").h5d.CHUNKED:
        return
    chunk_bytes = math.prod(plist.get_chunk()) * size
    check_at_once(chunk_bytes, f"{what}: a chunk")
    filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
    is_known = {*filters} <= {*_COMPRESSIONS, _SHUFFLE, _FLETCHER32}
    if not is_known or sum(one in _COMPRESSIONS for one in filters) > 1:
        raise FormatError(f"{what}: expected gzip or lzf as compression, found filters {filters}")
    if _DEFLATE not in filters:
        return
    large: list[tuple[int, ...]] = []

    def look(about: Any) -> None:
        if about.size > _SMALL_BYTES and not about.filter_mask:
            large.append(about.chunk_offset)

    dataset.chunk_iter(look)
    for offset in large:
        if not _fits(dataset.read_direct_chunk(offset)[1], chunk_bytes + _SMALL_BYTES):
            raise FormatError(
                f"{what}: the chunk at {offset} decompresses to more than its {chunk_bytes:,} bytes"
            )


def _fits(data: bytes, most: int) -> bool:
    """Whether a deflate stream has at most `most` bytes; decodes a piece at a time."""
    stream, n_bytes = zlib.decompressobj(), 0
    while data and not stream.eof and n_bytes <= most:
        n_bytes += len(stream.decompress(data, _PIECE_BYTES))
        data = stream.unconsumed_tail
    return n_bytes <= most


def _refused(path: Path, where: str, what: str, other: str) -> FormatError:
    return FormatError(
        f"{path}: {where!r:.200}: expected plain datasets of this file, found {what} {other}; an "
        f"import reads no other file. If you trust it, copy the numbers into this one with h5py"
    )
