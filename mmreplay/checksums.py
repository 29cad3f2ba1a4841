"""The checksums of a lane's chunk files, as the writer keeps them.

Invariant: a checksum that is not 0 belongs to a chunk file that is finished and below the head; it
becomes durable with the next flush.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from pathlib import Path

from mmreplay import columns, files, format
from mmreplay.columns import Window
from mmreplay.format import ArraySpec

__all__ = ["Checksums"]


class Checksums:
    """`checksums/<array>` of every array, mapped for writing where they are touched.

    Args:
        lane: the lane's directory.
        specs: its arrays of rows.
        fresh: takes the directories in which a file was made.
    """

    def __init__(
        self, lane: Path, specs: Mapping[str, ArraySpec], fresh: collections.deque[Path]
    ) -> None:
        self._lane, self._specs, self._fresh = lane, specs, fresh
        self._windows: dict[tuple[str, int], Window] = {}
        # Filled by one thread while another empties it: a deque, whose ends are atomic.
        self._dirty: collections.deque[tuple[str, int]] = collections.deque()

    def _window(self, path: str, file: int) -> Window:
        window = self._windows.get((path, file))
        if window is None:
            sums = format.checksum_spec(path)
            window = self._windows[path, file] = columns.open_window(self._lane, sums, file)
            self._fresh.append(self._lane / sums.path)  # after: a flush may empty it at any time
        return window

    def set(self, spec: ArraySpec, chunk: int, value: int) -> None:
        """Store the crc32c of a finished chunk file; 0 stands for none, so a real 0 becomes 1."""
        file = chunk // format.CHECKSUM_ROWS
        window = self._window(spec.path, file)
        window.items[chunk - window.start] = value or 1
        self._dirty.append((spec.path, file))

    def has(self, spec: ArraySpec, chunk: int) -> bool:
        """Whether a chunk file's checksum is known."""
        window = self._window(spec.path, chunk // format.CHECKSUM_ROWS)
        return bool(window.items[chunk - window.start])

    def forget(self, head: int, tail_start: int) -> None:
        """Zero those of chunk files that hold the newest row, which may change, or rows past it.

        Of compressed arrays those from `tail_start` on: such shards are ignored, and written anew.
        """
        for spec in self._specs.values():
            finished = max(head - 1, 0) if spec.is_raw else tail_start
            for file in columns.chunk_files(self._lane, format.checksum_spec(spec.path)):
                window = self._window(spec.path, file)
                window.rows[max(finished // spec.chunk_rows - window.start, 0) :] = 0
                self._dirty.append((spec.path, file))

    def sync(self) -> None:
        """Make what was stored since the last call durable."""
        for path, file in {self._dirty.popleft() for _ in range(len(self._dirty))}:
            files.sync_file(columns.chunk_path(self._lane, format.checksum_spec(path), file))
