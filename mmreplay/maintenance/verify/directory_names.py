"""The names in a store's directories: what belongs there, what is litter, what is foreign.

Invariant: nothing is opened here, and no link is followed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mmreplay.errors import CorruptStoreError
from mmreplay.format.layout import LOGS, ArraySpec, group_paths
from mmreplay.maintenance.verify.report import STRAY
from mmreplay.system import checked_reads

Entry = tuple[str, str, bool]
"""Path below the lane, what is wrong with it, and whether it is mere litter."""

_LITTER = "left by a write that was cut off; the next writer removes it"
_PRIVATE = ("state", "checkpoint", "writer", "generator")


def foreign_in_lane(
    lane: Path, arrays: Mapping[str, tuple[ArraySpec, range] | None], state: str
) -> Iterator[Entry]:
    """What lies in a lane's directories and should not.

    `arrays` has every array by path, with the chunk files that it may have; None if its metadata
    could not be read, so that they are not known.
    """
    children: dict[str, set[str]] = {"": {".live"}}
    for path in (*group_paths(arrays), *arrays):
        parent, _, name = path.rpartition("/")
        children.setdefault(parent, set()).add(name)
    for folder, names in children.items():
        yield from _in_group(lane, folder, names, state)
    for path, known in arrays.items():
        yield from _in_array(lane, path, known, state)
    yield from _in_private(lane, state)


def foreign_in_group(root: Path, lanes: Iterable[Path]) -> Iterator[Entry]:
    """The same for the directory of a store of many lanes, without those of the lanes."""
    names = {path.name for path in lanes}
    for entry in _scan(root, ""):
        if entry.name in names:
            if entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
                yield entry.name, "expected a directory, found a link or a file", False
        elif entry.name.endswith(".tmp"):
            yield entry.name, _LITTER, True
        elif entry.name != "zarr.json":
            yield entry.name, f"{STRAY}: expected lanes only", False


def foreign_in_vector(lane: Path) -> Iterator[Entry]:
    """The same for the directory of a lane of many environments, without those of its logs."""
    for entry in _scan(lane, ""):
        if entry.name in LOGS:
            if entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
                yield entry.name, "expected a directory, found a link or a file", False
        elif entry.name.endswith(".tmp"):
            yield entry.name, _LITTER, True
        elif entry.name != "zarr.json":
            yield entry.name, f"{STRAY}: expected the logs ticks and starts only", False


def _scan(root: Path, folder: str) -> list[os.DirEntry[str]]:
    """What stands in a directory of a lane or store; nothing if it cannot be read."""
    try:
        checked_reads.check_directories(root, folder)
        with os.scandir(root / folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError, CorruptStoreError):
        return []  # its files are missing or cannot be read, too, and are named for it


def _in_group(lane: Path, folder: str, names: set[str], state: str) -> Iterator[Entry]:
    """What lies in a group and should not; `names` are those of its arrays and groups."""
    for entry in _scan(lane, folder):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name in names:
            if entry.is_symlink() or not entry.is_dir(follow_symlinks=False):
                yield path, "expected a directory, found a link or a file", False
        elif entry.name != "zarr.json":
            yield from _foreign(path, state, "expected arrays and groups of the schema only")


def _in_array(
    lane: Path, path: str, known: tuple[ArraySpec, range] | None, state: str
) -> Iterator[Entry]:
    """What lies in an array's directory and should not."""
    for entry in _scan(lane, path):
        if entry.name == "zarr.json":
            continue
        file = f"{path}/{entry.name}"
        if known is None:
            if not entry.name.startswith("c."):
                yield from _foreign(file, state, "expected chunk files only")
            continue
        spec, chunks = known
        chunk = spec.chunk_of(entry.name)
        if chunk is None:
            yield from _foreign(file, state, "expected chunk files only")
        # An open lane has room made ahead, files that are being evicted, and an older index.
        elif chunk not in chunks and state == "closed":
            start, stop = chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows
            text = f"{STRAY}: expected no chunk file for rows {start:,} to {stop - 1:,}"
            yield file, text, False


def _foreign(path: str, state: str, expected: str) -> Iterator[Entry]:
    """Something that is not known: left by a write, or foreign."""
    if not path.endswith(".tmp"):
        yield path, f"{STRAY}: {expected}", False
    elif state != "live":  # a live lane writes temporary files and renames them
        yield path, _LITTER, True


def _in_private(lane: Path, state: str) -> Iterator[Entry]:
    """What lies in ``.live``."""
    if state == "closed":
        if (lane / ".live").exists():
            yield ".live", f"a closed lane needs none: {_LITTER}", True
        return
    for entry in _scan(lane, ".live"):
        if entry.is_symlink() or not entry.is_file(follow_symlinks=False):
            yield f".live/{entry.name}", "expected a file, found a link or a directory", False
        elif entry.name not in _PRIVATE and not entry.name.endswith((".tail", ".tmp")):
            yield f".live/{entry.name}", "unknown to format 1", True
