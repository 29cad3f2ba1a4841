"""Names in a store's directories: find litter and foreign files.

Invariant: no file is opened and no link is followed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import FINALS, ArraySpec, group_paths
from mmreplay.maintenance.verify.report import STRAY
from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

__all__ = ["Arrays", "foreign", "foreign_in_lane"]

Entry = tuple[str, str, bool]
"""Path below the store or lane, what is wrong with it, and whether it is harmless litter."""

Arrays = Mapping[str, tuple[ArraySpec, range] | None]
"""By path below the lane: an array and the chunk files it may have; None: not to be checked."""

_LITTER = "left by a write that was cut off; the next writer removes it"


def foreign_in_lane(lane: AnyPath, arrays: Arrays, state: str) -> Iterator[Entry]:
    """What does not belong into a lane's directories; `arrays` are all that it may have."""
    children: dict[str, set[str]] = {log: {".live"} for log in ("", FINALS)}
    for path in (FINALS, *group_paths(arrays), *arrays):
        parent, _, name = path.rpartition("/")
        children.setdefault(parent, set()).add(name)
    for folder, names in children.items():
        expected = "expected arrays and groups of the schema only"
        yield from foreign(lane, names, expected, folder=folder, state=state)
    for path, known in arrays.items():
        if known is not None:
            yield from _in_array(lane, path, *known, state)
    for folder in (".live", f"{FINALS}/.live"):
        if state == "closed" and (lane / folder).exists():
            yield folder, f"a closed lane needs none: {_LITTER}", True


def foreign(
    root: AnyPath, known: Collection[str], expected: str, *, folder: str = "", state: str = ""
) -> Iterator[Entry]:
    """What does not belong into a directory that has other directories, of names `known`."""
    for name, path in _entries(root, folder):
        there = root / path
        if name not in known:
            if name != "zarr.json":
                yield from _stray(path, state, expected)
        elif there.is_symlink() or (there.exists() and not there.is_dir()):
            yield path, "expected a directory, found a link or a file", False


def _entries(root: AnyPath, folder: str) -> Iterator[tuple[str, str]]:
    """Names and paths in a directory of a lane or store; empty if it cannot be read."""
    found: list[str] = []
    with contextlib.suppress(OSError, CorruptStoreError):
        if folder:
            checked_reads.check_directories(root, folder)
        found = checked_reads.names(root / folder)
    for name in found:
        yield name, f"{folder}/{name}" if folder else name


def _in_array(
    lane: AnyPath, path: str, spec: ArraySpec, chunks: range, state: str
) -> Iterator[Entry]:
    """What does not belong into an array's directory."""
    for name, file in _entries(lane, path):
        chunk = spec.chunk_of(name)
        if chunk is None:
            if name != "zarr.json":
                yield from _stray(file, state, "expected chunk files only")
        elif chunk in chunks:
            continue  # its rows are read
        elif state != "closed":  # it preallocates files, and may be evicting some
            if (lane / file).is_symlink() or (lane / file).is_dir():
                yield file, "expected a chunk file, found a link or a directory", False
        elif not (chunk == chunks.stop and (lane / ".live").exists()):
            # Else of the pending row: its writer died at the end of its close.
            start, stop = chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows
            text = f"{STRAY}: expected no chunk file for rows {start:,} to {stop - 1:,}"
            yield file, text, False


def _stray(path: str, state: str, expected: str) -> Iterator[Entry]:
    """A temporary file of a write, or a foreign file."""
    if not path.endswith(".tmp"):
        yield path, f"{STRAY}: {expected}", False
    elif state != "live":  # a live lane writes temporary files and renames them
        yield path, _LITTER, True
