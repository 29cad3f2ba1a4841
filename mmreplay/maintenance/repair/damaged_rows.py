"""Which rows of a log are damaged, and which of its files can be shared, by what `verify` found.

Invariant: the log is only read; no row counts as sound that a finding speaks of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmreplay.errors import MmreplayError
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance.copy_lane import is_intact
from mmreplay.maintenance.verify.chunk_files import (
    NO_CHECKSUM,
    WRONG_CHECKSUM,
    is_narrow,
    narrow_files,
    unexplained,
)
from mmreplay.maintenance.verify.report import Finding
from mmreplay.reading.log_reader import LogReader

# Arrays that are made again from the rows, or hold none.
_DERIVED = ("episodes", "checksums", "priorities")

Span = tuple[int, int]
"""Rows [start, stop)."""


def merged(spans: Sequence[Span], base: int, head: int) -> list[Span]:
    """Spans within [base, head), ascending, those that touch as one."""
    out: list[Span] = []
    for start, stop in sorted((max(start, base), min(stop, head)) for start, stop in spans):
        if stop <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(stop, out[-1][1])
        else:
            out.append((start, stop))
    return out


class DamagedRows:
    """The damage in one log.

    Attributes:
        spans: [start, stop) of rows that are damaged.
        wrong_sums: (array, chunk file) of sound files whose checksum is damaged.
        to_rewrite: the same of shards that are damaged in rows that were evicted.
    """

    def __init__(self, reader: LogReader, findings: Sequence[Finding]) -> None:
        self._reader = reader
        narrow = narrow_files(findings)
        self.spans: list[Span] = []
        for finding in unexplained(findings):
            self.spans += self._rows_of(finding)
        self.wrong_sums = self._chunks_of(
            finding for finding in findings if finding.message == WRONG_CHECKSUM
        )
        self.to_rewrite = self._chunks_of(
            finding
            for finding in findings
            if finding.file in narrow and is_narrow(finding)
            if finding.rows is not None and finding.rows[0] < self._reader.base
        )

    def _chunks_of(self, findings: Iterable[Finding]) -> set[tuple[str, int]]:
        """(array, chunk file) of findings about rows."""
        specs = self._reader.specs
        return {
            (finding.array, finding.rows[0] // specs[finding.array].chunk_rows)
            for finding in findings
            if finding.rows is not None and finding.array in specs
        }

    def _rows_of(self, finding: Finding) -> list[Span]:
        """The rows that a finding says are damaged."""
        if finding.rows is None or finding.array.partition("/")[0] in _DERIVED:
            return []
        if finding.message in {NO_CHECKSUM, WRONG_CHECKSUM}:
            return []  # all other rules were checked, and it gets one
        spec, reader = self._reader.specs.get(finding.array), self._reader
        if spec is not None and spec.is_raw and reader.is_closed:
            chunk = finding.rows[0] // spec.chunk_rows
            if (chunk + 1) * spec.chunk_rows > reader.head and self._has_sum(spec, chunk):
                return []
        return [finding.rows]

    def _has_sum(self, spec: ArraySpec, chunk: int) -> bool:
        """Whether the rows of the last chunk file are those that its checksum is of."""
        try:
            return is_intact(self._reader, spec, chunk, strict=True)
        except (MmreplayError, OSError):
            return False
