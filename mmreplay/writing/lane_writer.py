"""What both writers share: their lane, its session, flushing and closing.

Invariant: after an error or a close, the next call of a writer asks first whether writing is over.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from mmreplay.schema import Schema
from mmreplay.storage.state_page import COMMITTED
from mmreplay.writing.background import Background
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.session import Session, refuse_copy

__all__ = ["LaneWriter"]


class LaneWriter:
    """A context manager: leaving it closes the lane.

    Attributes:
        path: the lane's directory.
        files: the lane's files, for the rest of the package.
    """

    # `_is_settled` is False where an interrupt may leave the end of an episode half done: then the
    # next call finds out from the files what was committed.
    __getstate__ = refuse_copy

    def __init__(self, files: LockedLane, background: Background) -> None:
        """Begin to write to a locked lane; raises as `Session`."""
        self.path = Path(str(files.path))
        self._border = 0
        self._is_settled = False
        self._session = Session(files, background, self._stop)
        self.files = files
        try:
            self._rows, self._ends = self._session.rows, self._session.ends
            self._words = files.rows.state.words
            self._head = files.rows.head
            self._attach()
            self._session.begin()
        except BaseException:
            files.release()
            raise

    def _attach(self) -> None:
        """Look up what the next step must know; every episode has ended."""
        raise NotImplementedError

    def _settle(self) -> None:
        """Go on from what is committed, if a call was interrupted."""
        raise NotImplementedError

    def _finish(self) -> None:
        """End the running episodes."""
        raise NotImplementedError

    @property
    def schema(self) -> Schema:
        """What a step of one environment holds."""
        return self.files.schema

    @property
    def metadata(self) -> dict[str, Any]:
        """attributes.mmreplay as they stand on disk."""
        return self.files.metadata

    @property
    def rows(self) -> int:
        """Steps committed, each of all environments, by this writer and those before it."""
        return self._words[COMMITTED]

    @property
    def base(self) -> int:
        """The oldest step kept: evicted ones may be there yet, as context of the oldest stacks."""
        return self.files.rows.base

    def flush(self) -> None:
        """Make all steps durable: they survive a power cut from here on.

        Raises:
            FailedStoreError: an fsync failed; writing is over. What the last flush made durable is
                kept; later steps are lost when the lane is opened again.
            ClosedError: this writer is closed.
        """
        self._session.guard()
        self._settle()
        self._session.flush()

    def close(self) -> None:
        """Make the lane a plain zarr group and let go of it; a second call does nothing.

        A running episode ends as truncated.

        Raises:
            DiskFullError: no room for the last shard. Nothing is lost; make room and call again.
            FailedStoreError: a write or fsync failed. The next opening recovers: as after `flush`
                if it was an fsync of rows, and otherwise all that was committed.
        """
        self._session.close(self._finish)

    def _stop(self) -> None:
        """Let the next call ask first whether writing is over."""
        self._border = 0

    def _release_unclosed(self) -> None:
        """Let go of the lane as it is; the next opening recovers it."""
        self._session.release_unclosed()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
