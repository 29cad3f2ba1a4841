"""Looking twice: how a check of a lane that may be changing becomes a finding.

Invariant: a finding counts only if it is still there when the file is read again while the lane has
the same writer; when one opened or closed it meanwhile, `WriterChangedError` says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mmreplay.errors import MmreplayError
from mmreplay.format import layout
from mmreplay.maintenance.verify.report import Finding, Tally
from mmreplay.reading.log_reader import LogReader
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import checked_reads, locks

_T = TypeVar("_T")

_LOOKS = 3
_PAUSE_S = 0.02


class WriterChangedError(Exception):
    """A writer opened or closed the lane; never leaves the package."""


class Watch:
    """One lane under examination, or a log of one, and what was found in it so far.

    Args:
        root: the store's directory.
        path: the lane's.
        tally: of the whole store.
        log: which of its logs; empty for the lane itself.

    Attributes:
        path: the directory that is examined.
        lane: the directory's name in a store of many lanes; empty in a store of one.
        tally: as given.
        document: the bytes of the lane's zarr.json.
        documents: those of its arrays and groups, by path; None of one that is damaged.
        metadata: attributes.mmreplay in them; None if they cannot be read.
        reader: follows a lane that is not closed.
        findings: what is damaged.
        warnings: what is odd.
    """

    def __init__(self, root: Path, path: Path, tally: Tally, log: str = "") -> None:
        self.path = path / log
        self._log, self._locked = log, path
        self.lane = "" if path == root else path.name
        self.tally = tally
        self.document = b""
        self.documents: dict[str, bytes | None] = {}
        self.metadata: dict[str, Any] | None = None
        self.reader: LogReader | None = None
        self.findings: list[Finding] = []
        self.warnings: list[Finding] = []

    @property
    def prefix(self) -> str:
        """What stands before the paths of arrays in findings."""
        return f"{self._log}/" if self._log else ""

    @property
    def closed(self) -> bool:
        """Whether the lane is, by its zarr.json."""
        return self.metadata is not None and bool(self.metadata.get("closed"))

    def finding(
        self, file: str, message: str, array: str = "", rows: tuple[int, int] | None = None
    ) -> Finding:
        """A finding about a file of this lane or log."""
        if self._log:
            file = f"{self.prefix}{file}" if file else self._log
            array = f"{self.prefix}{array}" if array else ""
        path = f"{self.lane}/{file}" if self.lane and file else file or self.lane
        return Finding(self.lane, array, path, rows, message)

    def confirm(self, check: Callable[[], tuple[list[Finding], _T]]) -> _T:
        """Run a check, again if it finds something; what it finds the last time counts.

        Raises WriterChangedError if what it finds may be the work of a writer.
        """
        read = (self.tally.files, self.tally.bytes)
        findings, out = check()
        for _ in range(_LOOKS - 1):
            if not findings:
                break
            self.check_same_writer()
            if self.reader is not None:
                time.sleep(_PAUSE_S)
            self.tally.files, self.tally.bytes = read
            findings, out = check()
        if findings:
            self.check_same_writer()
        self.findings += findings
        return out

    def note(self, findings: list[Finding]) -> None:
        """As `confirm`, for what was computed from things that were settled before."""
        if findings:
            self.check_same_writer()
        self.findings += findings

    def check_same_writer(self) -> None:
        """Raise WriterChangedError if the lane is not what it was when it was opened."""
        if not self._same_attributes() or (self.reader is not None and not self.reader.poll()):
            raise WriterChangedError
        if self.closed and locks.is_locked(self._locked):
            raise WriterChangedError  # it is being opened for writing, or has just been closed

    def _same_attributes(self) -> bool:
        """Whether the lane's zarr.json gives the attributes that it gave."""
        document = self.path / "zarr.json"
        with contextlib.suppress(MmreplayError, OSError):
            if checked_reads.read_bytes(document, layout.MAX_METADATA_BYTES) == self.document:
                return True  # a long one takes its time to parse
        try:
            return read_metadata(self.path) == self.metadata
        except MmreplayError:
            return self.metadata is None

    def evicted(self, stop: int) -> bool:
        """Whether the rows below `stop` were evicted since the lane was opened."""
        return self.reader is not None and self.reader.poll() and stop <= self.reader.base
