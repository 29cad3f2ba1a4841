"""Progress in bytes, for the progress bar of a caller."""

from __future__ import annotations

from collections.abc import Callable


class ByteCount:
    """Counts bytes; reports to the caller how many are done, and about how many there are."""

    def __init__(
        self, progress: Callable[[int, int], None] | None, total: Callable[[], int]
    ) -> None:
        self.bytes = 0
        self._progress = progress
        self._total = 0 if progress is None else total()

    def add(self, size: int) -> None:
        """A file, or a part of one, is done."""
        self.bytes += size
        self._report(self.bytes)

    def finish(self) -> None:
        """All is done."""
        self._report(self._total)

    def _report(self, done: int) -> None:
        if self._progress is not None:
            self._progress(min(done, self._total), self._total)
