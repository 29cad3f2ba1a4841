"""Write a picture into a file, which gets its name only when it is complete."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mmreplay.errors import SchemaError, StoreExistsError
from mmreplay.storage.lane_metadata import path_of_new_store
from mmreplay.system import durable_writes, user_paths
from mmreplay.system.staging import staging_directory


def checked_path(out: Any, suffixes: Sequence[str]) -> Path:
    """Check the path of a picture before it is drawn."""
    path = user_paths.as_path(out, "out")
    if path.suffix.lower() not in suffixes:
        expected = ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}"
        raise SchemaError(f"out: {str(path)!r:.300}: expected a name that ends in {expected}")
    return path_of_new_store(path, "out")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """The path to write to; at the end of the block the file moves to `path`, unless it failed."""
    with staging_directory(path.absolute()) as folder:
        staged = folder / path.name
        yield Path(str(staged))
        durable_writes.sync_file(staged)
        target = folder.with_name(path.name)
        try:
            durable_writes.share_file(staged, target)  # unlike a rename, replaces nothing
        except FileExistsError as error:
            raise StoreExistsError(f"{path}: already exists; choose another path") from error
        durable_writes.sync_directory(target.parent)
