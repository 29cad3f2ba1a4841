"""Progress in bytes, for the progress bar of a caller."""

from __future__ import annotations

from collections.abc import Callable

from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath


class ByteCount:
    """Counts files, or parts, and bytes; reports bytes of about how many in the store `root`."""

    def __init__(self, progress: Callable[[int, int], None] | None, root: AnyPath) -> None:
        self.files = self.bytes = self._total = 0
        self._progress = progress
        if progress is not None:
            self._total = sum(checked_reads.allocated_bytes(root).values())

    def add(self, size: int) -> None:
        """A file, or a part of one, is done."""
        self.files += 1
        self.bytes += size
        self._report(self.bytes)

    def finish(self) -> None:
        """All is done."""
        self._report(self._total)

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(min(done, self._total), self._total)
