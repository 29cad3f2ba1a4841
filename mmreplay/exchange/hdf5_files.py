"""HDF5 files: opening those of an import, and new ones.

Invariant: a dataset that is read is in the file itself, and decodes to the size of its shape. HDF5
follows links and virtual datasets to any file, and decompresses without a bound; so a whole file is
walked before anything is read, and only what was found fit then can be read.
"""

from __future__ import annotations

import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmreplay.errors import FormatError
from mmreplay.exchange.columns import ArrayColumn, Column, Shape, Unreadable, joined
from mmreplay.exchange.fields import need
from mmreplay.exchange.losses import Losses
from mmreplay.exchange.source_files import check_at_once, check_claim, check_row, checked_name
from mmreplay.ids import Array

_MOST_DEPTH = 100  # HDF5 itself recurses, and overflows the stack

_DEFLATE, _SHUFFLE, _FLETCHER32, _LZF = 1, 2, 3, 32000
_COMPRESSIONS = (_DEFLATE, _LZF)
_SMALL_BYTES = 256 << 10
"""Chunks of fewer bytes need no check: deflate expands them at most 1,032 times."""

_PIECE_BYTES = 1 << 20
_NUMBERED = re.compile(r"(?<=_)\d+(?=[/@]|\Z)")


@contextmanager
def open_hdf5(path: Path) -> Iterator[Hdf5Source]:
    """A file, for reading; raises FormatError for one that claims more than it can hold."""
    with need("h5py").File(checked_name(path), "r") as file:
        yield Hdf5Source(file, path)


class Hdf5Source:
    """An opened file; read its datasets only by `column`.

    `columns` are the datasets by path, ascending, `Unreadable` those that cannot be read; `groups`
    the paths of groups; `attribute_names` those of both, as ``PATH@NAME``.
    """

    def __init__(self, file: Any, path: Path) -> None:
        self.path, self.file = path, file
        self.groups: list[str] = []
        self.attribute_names: list[str] = []
        self.columns: dict[str, Shape | Unreadable] = {}
        self._n_bytes, self._source_bytes = 0, path.stat().st_size
        self._walk()
        self.columns = dict(sorted(self.columns.items(), key=lambda item: item[0].split("/")))

    def column(self, name: str) -> Column:
        """A dataset; raises FormatError if it is missing or cannot be read."""
        one = self.columns.get(name)
        if not isinstance(one, Shape):
            problem = "the file does not have it" if one is None else one.problem
            raise FormatError(f"{self.path}: {name!r:.200}: {problem}")
        return ArrayColumn(self.file[name])

    def value(self, name: str) -> Any:
        """A dataset of one number."""
        if math.prod(self.column(name).shape) != 1:
            raise FormatError(f"{self.path}: {name!r:.200}: expected one number, found many")
        return self.file[name][()].reshape(())[()]

    def joined(self, names: Mapping[str, str], ends: Array) -> Column:
        """A dataset of each episode, as one column; `names` has its path by name of the episode."""
        paths = list(names.values())
        shapes = {episode: self.columns.get(path) for episode, path in names.items()}
        return joined(shapes, ends, lambda number: self.column(paths[number]))

    def table(self) -> dict[str, Column]:
        """All datasets."""
        return {
            name: one if isinstance(one, Unreadable) else self.column(name)
            for name, one in self.columns.items()
        }

    def add_rest(self, used: Iterable[str], losses: Losses) -> None:
        """Count datasets, and attributes as ``PATH@NAME``, that are not in `used`."""
        counts: Counter[str] = Counter()
        taken = set(used)
        for name in [*self.columns, *self.attribute_names]:
            if name not in taken:
                problem = getattr(self.columns.get(name), "problem", "")
                kind = "attribute" if "@" in name else "dataset"
                why = problem and f": {problem}"
                counts[f"{kind} {_NUMBERED.sub('*', name)}: left out{why}"] += 1
        for what, count in counts.items():
            losses.add(what, count)

    def _walk(self) -> None:
        h5py = need("h5py")
        root = h5py.h5g.open(self.file.id, b"/")
        todo = [(root, "", 0)]
        seen = {_identity(root)}
        self._add_attributes(root, "")
        while todo:
            group, above, depth = todo.pop()
            for raw in group:
                name, kind = above + raw.decode(errors="replace"), group.links.get_info(raw).type
                if kind != h5py.h5l.TYPE_HARD:
                    is_external = kind == h5py.h5l.TYPE_EXTERNAL
                    self._refuse(name, "a link to another file" if is_external else "a link")
                    continue
                one = h5py.h5o.open(group, raw)
                if isinstance(one, h5py.h5d.DatasetID):
                    self._add(one, name)
                elif isinstance(one, h5py.h5g.GroupID):
                    if depth == _MOST_DEPTH:
                        raise FormatError(
                            f"{self.path}: {name[:80]!r}...: expected at most {_MOST_DEPTH} nested "
                            f"groups, found more"
                        )
                    if (place := _identity(one)) in seen:
                        self._refuse(name, "another name of a group")
                        continue
                    seen.add(place)
                    self.groups.append(name)
                    self._add_attributes(one, name)
                    todo.append((one, f"{name}/", depth + 1))

    def _refuse(self, name: str, what: str) -> None:
        self.columns[name] = Unreadable(
            f"{what}, and an import reads only plain datasets of the file itself; if you trust it, "
            f"copy the numbers into the file with h5py"
        )

    def _add_attributes(self, one: Any, name: str) -> None:
        h5py = need("h5py")
        if h5py.h5a.get_num_attrs(one):
            names: list[bytes] = []
            h5py.h5a.iterate(one, lambda raw, *_: names.append(raw))
            self.attribute_names += [f"{name}@{raw.decode(errors='replace')}" for raw in names]

    def _add(self, one: Any, name: str) -> None:
        """Add a dataset after checking where its numbers are, and how much memory they need."""
        self._add_attributes(one, name)
        plist, what = one.get_create_plist(), f"{self.path}: {name!r:.200}"
        is_virtual = plist.get_layout() == need("h5py").h5d.VIRTUAL
        if is_virtual or plist.get_external_count():
            self._refuse(name, "a virtual dataset" if is_virtual else "numbers in another file")
            return
        try:
            dtype, n_bytes = one.dtype, math.prod(one.shape) * one.get_type().get_size()
            _check_sizes(one, what)
        except (FormatError, TypeError, ValueError) as error:  # h5py: of types without a dtype
            problem = str(error).removeprefix(f"{what}: ")
            self.columns[name] = Unreadable(f"cannot be read: {problem:.300}")
            return
        self._n_bytes += n_bytes
        check_claim(self._n_bytes, self._source_bytes, what)
        self.columns[name] = Shape(tuple(one.shape), dtype)


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
    """Ignores writes after a failed one, as HDF5 repeats that and then aborts the process."""

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


def _identity(group: Any) -> tuple[int, int]:
    """A group can have several names, and contain itself."""
    about = need("h5py").h5o.get_info(group)
    return about.fileno, about.addr


def _check_sizes(dataset: Any, what: str) -> None:
    """Raise FormatError for rows or chunks that need too much memory."""
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
