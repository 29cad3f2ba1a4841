"""`snapshot`: a closed copy of a store as it is now, while its writers continue.

Invariant: the copy gets its name when it is whole and durable; the source is only read. The next
snapshot to the same place removes what an interrupted one left.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from mmreplay.errors import CorruptStoreError, StoreExistsError
from mmreplay.format import layout
from mmreplay.maintenance.copy_lane import copy_lane
from mmreplay.maintenance.verify.report import ByteCount, as_json
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.store import Store
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import hold_store, lane_paths, path_of_new_store
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.staging import staging_directory

_ATTEMPTS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What a snapshot took.

    Attributes:
        path: the copy.
        lanes: copied.
        rows: kept ones, over all lanes.
        transitions: that can be sampled.
        shared_bytes: of files that the copy shares with its source, as allocated.
        own_bytes: of files of its own.
    """

    path: str
    lanes: int
    rows: int
    transitions: int
    shared_bytes: int
    own_bytes: int

    to_json = as_json


def snapshot(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
) -> Snapshot:
    """Copy a store as it is at this moment: closed, live or left by a crash.

    Writers of the source are not disturbed. What no writer will change any more is shared with the
    source by hard links, where the file system has them, and takes no space; row ids are the same.
    Each lane of a live store is copied as of a moment of its own.

    Args:
        path: the store.
        target: a directory that does not exist yet, best on the same file system.
        progress: called with bytes that are in place and bytes in all, about.

    Raises:
        StoreNotFoundError: no store there, or no directory above the target.
        FormatError, CorruptStoreError: something there that is not a store, rows that cannot be
            read, or a lane that evicts faster than it can be copied.
        StoreExistsError: the target exists.
        SchemaError: the target lies within a store, or nothing can have its name.
        DiskFullError, FailedStoreError: no room, or a write failed; nothing is left behind.
    """
    named, copy = user_paths.as_path(path), path_of_new_store(target)
    source = hold_store(named).root
    lanes = lane_paths(source)
    done = ByteCount(progress, source)
    with staging_directory(copy) as folder:
        built = folder / copy.name  # a lane is locked itself while it is being closed
        if lanes == [source]:
            copy_now(source, built, done.add)
        else:
            durable_writes.make_directory(built)
            root = checked_reads.read_bytes(source / "zarr.json", layout.MAX_METADATA_BYTES)
            durable_writes.write_file(built / "zarr.json", root)
            for lane in lanes:
                copy_now(lane, built / lane.name, done.add)
        durable_writes.sync_tree(built)
        if not durable_writes.replace_directory(built, folder.with_name(copy.name)):
            raise StoreExistsError(f"{copy}: another process created it meanwhile")
    done.finish()
    return _describe(copy)


def copy_now(source: AnyPath, target: AnyPath, moved: Callable[[int], None]) -> None:
    """Copy a lane as it is now; again if rows were evicted meanwhile."""
    for _ in range(_ATTEMPTS):
        reader = LaneReader(source)
        try:
            copy_lane(reader, target, moved=moved)
        except EvictedError:
            continue
        return
    raise CorruptStoreError(
        f"{source}: evicted rows, or was reopened, {_ATTEMPTS} times while it was being copied; "
        f"try again when its writer is less busy"
    )


def _describe(copy: Path) -> Snapshot:
    shared = own = 0
    for folder, _, names in os.walk(copy):
        for name in names:
            about = Path(folder, name).lstat()
            if about.st_nlink > 1:
                shared += about.st_blocks * 512
            else:
                own += about.st_blocks * 512
    with Store([copy]) as store:
        readers = store.live.readers
        rows = sum(reader.head - reader.base for reader in readers)
        return Snapshot(str(copy), len(readers), rows, len(store), shared, own)
