"""A file that a picture is written into: it has its name when it is whole, and not before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmreplay.errors import SchemaError, StoreExistsError
from mmreplay.storage.lane_metadata import store_around
from mmreplay.system import durable_writes, user_paths
from mmreplay.system.staging import staging_directory


def checked_path(out: Any, suffixes: Sequence[str]) -> Path:
    """The path of a picture that is to be made.

    Raises:
        SchemaError: no path, one that ends in none of the suffixes, or one within a store.
        StoreExistsError: there is something.
        StoreNotFoundError: there is no directory to make it in.
    """
    path = user_paths.as_path(out, "out")
    if path.suffix.lower() not in suffixes:
        expected = ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}"
        raise SchemaError(
            f"out: {str(path)!r:.300}: expected a name that ends in {expected}, found "
            f"{path.suffix or 'none of them'}"
        )
    user_paths.path_to_create(path, "out")
    if os.path.lexists(path):
        raise _exists(path)
    user_paths.check_parent(path)
    if (store := store_around(path)) is not None:
        raise SchemaError(f"{path}: lies within the store {store}; choose another path")
    return path


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Where to write it; it gets its name at the end of the block, unless that was left early.

    Raises:
        StoreExistsError: somebody else made a file of this name meanwhile.
        DiskFullError, FailedStoreError: it cannot be written, made durable, or get its name.
    """
    with staging_directory(path.absolute()) as folder:
        staged = folder / path.name
        yield Path(str(staged))
        durable_writes.sync_file(staged)
        target = folder.with_name(path.name)
        try:
            durable_writes.share_file(staged, target)  # unlike a rename, replaces nothing
        except FileExistsError as error:
            raise _exists(path) from error
        durable_writes.sync_directory(target.parent)


def _exists(path: Path) -> StoreExistsError:
    return StoreExistsError(f"{path}: there is something already; choose another path")
