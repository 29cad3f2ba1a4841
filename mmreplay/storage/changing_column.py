"""A column of one lane whose values may change: who changes them, and what the checksums say then.

Invariant: only the holder of the column's lock changes values of committed rows. From its first
change on, a chunk file has no checksum until the holder, or the close of the lane, stores one.
"""

from __future__ import annotations

import collections
import contextlib

from mmreplay.errors import CorruptStoreError, LockedError
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids, distinct
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.locks import DirectoryLock


def lock_column(lane: AnyPath, path: str, patience_s: float = 0.5) -> DirectoryLock:
    """Lock a column of a lane; LockedError if another process changes its values."""
    return DirectoryLock(lane / path, patience_s=patience_s, who=lambda: "", what="column")


def lock_columns(lane: AnyPath, held: contextlib.ExitStack) -> None:
    """Lock all derived columns of a lane until `held` is left; LockedError as of `lock_column`."""
    for name in checked_reads.names(lane / "derived"):
        path = f"derived/{name}"
        if (lane / path).is_dir() and not (lane / path).is_symlink():
            held.callback(lock_column(lane, path).release)


def sync_values(lane: AnyPath, spec: ArraySpec) -> None:
    """Make all values of a column durable; chunk files that go meanwhile are of evicted rows."""
    with contextlib.suppress(FileNotFoundError):  # the column was removed: no row is lost
        for chunk in chunk_files.chunk_files(lane, spec):
            path = chunk_files.chunk_path(lane, spec, chunk)
            durable_writes.sync_file(path, missing_ok=True)
        durable_writes.sync_directory(lane / spec.path)


def end_values(lane: AnyPath, spec: ArraySpec, head: int) -> None:
    """Durably zero what the last chunk file has from row `head` on, and give its blocks back."""
    chunk, first = divmod(head, spec.chunk_rows)
    if first and chunk_files.chunk_path(lane, spec, chunk).exists():
        chunk_files.zero_rows(lane, spec, chunk, first)


class ChangingColumn:
    """A column that this process has locked, to change its values; LockedError: another one has."""

    def __init__(self, lane: AnyPath, spec: ArraySpec) -> None:
        self._lane, self._spec = lane, spec
        self._lock = lock_column(lane, spec.path)
        self._sums = Checksums(lane, {spec.path: spec}, collections.deque())
        self._summed = self._sums.present(spec)

    def begin(self, rows: Ids | None = None) -> None:
        """Before values of these rows, or any, change: the checksums of their chunk files go."""
        if self._summed:  # of a lane that was closed: none of a new one has any
            changing = self._summed
            if rows is not None:
                chunks = distinct(rows // self._spec.chunk_rows).tolist()
                changing = changing.intersection(chunks)
            self._sums.drop(self._spec, changing)
            self._summed -= changing

    def sync(self) -> None:
        """Make the values durable."""
        sync_values(self._lane, self._spec)

    def release(self) -> None:
        """Make the values durable, and store the checksums unless a writer does so at its close."""
        try:
            self.sync()
            with contextlib.suppress(LockedError):  # the lane has a writer
                lane_lock = DirectoryLock(self._lane, patience_s=0, who=lambda: "")
                try:
                    self._finish()
                finally:
                    lane_lock.release()
        finally:
            self._lock.release()

    def _finish(self) -> None:
        own = read_metadata(self._lane)
        if own["closed"]:  # else whoever recovers it closes it, too
            end_values(self._lane, self._spec, own["rows"])
            with contextlib.suppress(CorruptStoreError):  # a damaged file gets none
                self._sums.complete(self._spec, own["rows"])
            self._sums.sync()
