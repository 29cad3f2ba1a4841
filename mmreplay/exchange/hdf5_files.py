"""HDF5 files: those that are imported, and no other file through them, and new ones.

Invariant: what is read lies in the file itself. HDF5 can point to others, of any name, and reads
these without a word; so all that a file links is looked at before anything of it is read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need

__all__ = ["new_hdf5", "open_hdf5"]

_ITSELF = "."
"""As virtual datasets name the file that they are in."""

_MOST_DEPTH = 100
"""HDF5 itself goes down by recursion, and overflows the stack of the process."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """The ``h5py.File``, for reading.

    Raises FormatError if anything in it is an external link, has external storage, or is a virtual
    dataset of another file; MissingExtraError without h5py.
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
            if target.error is not None:  # of which HDF5 makes another one, or none at all
                raise target.error


class _Written(io.FileIO):
    """Takes, once a write has failed, what else comes for written.

    HDF5 tries again when the file is closed and when the process ends; if it cannot do it then, it
    ends the process.
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
    seen = {_place(todo[0][0])}
    while todo:
        group, above, depth = todo.pop()
        links: list[tuple[bytes, int]] = []
        group.links.iterate(
            lambda name, about, links=links: links.append((name, about.type)), info=True
        )
        for name, kind in links:
            where = f"{above}/{name.decode(errors='replace')}"
            if kind == h5py.h5l.TYPE_SOFT:  # leads to somewhere in this file, which comes by itself
                continue
            if kind != h5py.h5l.TYPE_HARD:
                raise _refused(path, where, "a link to", _target(group, name, kind))
            one = h5py.h5o.open(group, name)
            if isinstance(one, h5py.h5d.DatasetID):
                _check_dataset(one, path, where)
            elif isinstance(one, h5py.h5g.GroupID) and (place := _place(one)) not in seen:
                if depth == _MOST_DEPTH:
                    raise FormatError(
                        f"{path}: {where[:80]!r}...: expected groups in at most {_MOST_DEPTH} "
                        f"others, found more"
                    )
                seen.add(place)
                todo.append((one, where, depth + 1))


def _place(group: Any) -> tuple[int, int]:
    """What tells a group from others: it can have several names, and lie within itself."""
    about = need("h5py").h5o.get_info(group)
    return about.fileno, about.addr


def _target(group: Any, name: bytes, kind: int) -> str:
    if kind != need("h5py").h5l.TYPE_EXTERNAL:
        return f"no one knows where, of type {kind}"
    other, inside = group.links.get_val(name)
    return f"{inside.decode(errors='replace')!r:.80} in {other.decode(errors='replace')!r:.200}"


def _check_dataset(dataset: Any, path: Path, where: str) -> None:
    plist = dataset.get_create_plist()
    if plist.get_external_count():
        other = plist.get_external(0)[0].decode(errors="replace")
        raise _refused(path, where, "numbers that lie in", f"{other!r:.200}")
    if plist.get_layout() == need("h5py").h5d.VIRTUAL:
        for number in range(plist.get_virtual_count()):
            other = plist.get_virtual_filename(number)
            if other != _ITSELF:
                raise _refused(path, where, "a virtual dataset of", f"{other!r:.200}")


def _refused(path: Path, where: str, what: str, other: str) -> FormatError:
    return FormatError(
        f"{path}: {where!r:.200}: expected what lies in this file, found {what} {other}; an import "
        f"reads no other file. If you trust it, copy the numbers into this one with h5py"
    )
