"""`export_dataset`: a store as a dataset that another library reads.

Invariant: what is written has its name only when it is whole and durable; the store is only read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmreplay.errors import EmptyBufferError, SchemaError, StoreExistsError
from mmreplay.exchange.formats import checked_options, named
from mmreplay.exchange.losses import Loss, Losses
from mmreplay.exchange.stored import Stored
from mmreplay.reading.store import Store
from mmreplay.storage.lane_metadata import path_of_new_store
from mmreplay.system import checked_reads, disk_errors, durable_writes, user_paths
from mmreplay.system.staging import staging_directory


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: the file or directory.
        format: of it.
        transitions: number of exported transitions.
        episodes: number of their episodes.
        bytes_on_disk: of what was written.
        losses: what could not be converted.
    """

    path: str
    format: str
    transitions: int
    episodes: int
    bytes_on_disk: int
    losses: tuple[Loss, ...]

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return dataclasses.asdict(self) | {"losses": [one.to_json() for one in self.losses]}


def export_dataset(
    src: str | os.PathLike[str],
    format: str,
    dst: str | os.PathLike[str],
    *,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Exported:
    """Write all episodes of a store as a dataset of another library.

    A live store is exported as it was at one moment. If a capacity may evict its steps before they
    are read, `snapshot` the store first.

    Args:
        src: the store: closed, live or left by a crash.
        format: one of `exchange_formats`.
        dst: a file or directory, depending on the format, that does not exist yet; of ``minari``
            also a dataset id, which is put into Minari's folder.
        progress: called with the uncompressed bytes of the rows that are done, and of all rows.
        options: of the format; see docs/exchange.md.

    Raises:
        SchemaError: no such format or option, rows that the format cannot hold, or the target is
            inside a store.
        StoreNotFoundError: no store there, or no directory above the target.
        StoreExistsError: the target exists.
        EmptyBufferError: the store has no episode.
        FormatError, CorruptStoreError: not a store, or a damaged one.
        InvalidIdError: steps were evicted before they were read.
        MissingExtraError: a library that writes the format is not installed.
        DiskFullError, FailedStoreError: no room, or a write failed; nothing is left behind.
    """
    chosen = named(format, to_export=True)
    if chosen.write is None:
        raise SchemaError(f"{format}: this format has no export")
    checked = checked_options(chosen.write, options, format)
    source = user_paths.absolute_path(src, "src")
    losses = Losses()
    with contextlib.ExitStack() as stack:
        if chosen.place is not None:
            dst = stack.enter_context(chosen.place(dst, checked))
        where = path_of_new_store(dst, "dst").absolute()
        store = stack.enter_context(Store([source]))
        stored = Stored(store, losses, progress)
        if not stored.n_steps:
            raise EmptyBufferError(f"{source}: nothing to export: no whole episode")
        with staging_directory(where) as folder:
            built = folder / where.name
            with disk_errors.writing(f"exporting to {format}", built):
                chosen.write(stored, Path(str(built)), losses, **checked)
            durable_writes.sync_tree(folder)
            if built.is_dir():
                is_free = durable_writes.replace_directory(built, folder.with_name(where.name))
            elif is_free := not os.path.lexists(where):
                durable_writes.rename(built, folder.with_name(where.name))
                durable_writes.sync_directory(folder.parent)
            if not is_free:
                raise StoreExistsError(f"{where}: another process created it meanwhile")
    n_bytes = where.stat().st_blocks * 512
    if where.is_dir():
        n_bytes = sum(checked_reads.allocated_bytes(where).values())
    return Exported(
        str(user_paths.as_path(dst)),
        format,
        stored.n_steps,
        stored.n_episodes,
        n_bytes,
        losses.all(),
    )
