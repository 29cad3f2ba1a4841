"""What `verify` read and found: `Finding`, `Report`, and how many bytes."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mmreplay.system import checked_reads
from mmreplay.system.held_directories import AnyPath

_ADVICE = re.compile("; run (`mmreplay )?(verify|repair)[^;]*$")

STRAY = "no part of the store"
"""How messages begin about files in a store's directory that do not belong to it."""

NO_CHECKSUM = "expected a checksum, as every file of a closed lane has; found 0"
"""Without a checksum it is unknown whether a chunk file is the right one and undamaged."""

WRONG_CHECKSUM = "expected a checksum that fits, found one in which a single bit differs"
"""The file is sound: a flipped bit in it would change many bits of its crc32c."""

PAST_THE_END = "expected zeros past the last"  # the rows before are sound

Span = tuple[int, int]  # rows [start, stop)


def merged(spans: Iterable[Span]) -> list[Span]:
    """Spans in ascending order; adjacent ones are joined."""
    out: list[Span] = []
    for start, stop in sorted(spans):
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(stop, out[-1][1])
        elif start < stop:
            out.append((start, stop))
    return out


def gaps(spans: Iterable[Span], start: int, stop: int) -> Iterator[Span]:
    """The gaps between spans, within [start, stop)."""
    for first, last in merged(spans):
        if start < min(first, stop):
            yield start, min(first, stop)
        start = max(start, last)
    if start < stop:
        yield start, stop


def reason(error: Exception, *named: object) -> str:
    """An error's text without the paths that the finding has anyway."""
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = f"cannot be read: {error.strerror}"
    text = _ADVICE.sub("", text)
    for name in named:
        text = text.removeprefix(f"{name}: ")
    return text


def as_json(result: Any) -> dict[str, Any]:
    """The attributes of a dataclass as a dict of JSON values."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(result)))
    return values


@dataclass(frozen=True, slots=True)
class Finding:
    """One deviation from format 1.

    Attributes:
        lane: the lane's directory in a store of several lanes; else empty.
        array: its path in the lane, for example ``frames``, ``extras/log_prob`` or ``finals/id``;
            empty if it is not about an array.
        file: the path below the store's directory.
        rows: [start, stop) of the rows of that array that are concerned; None if not about rows.
        message: what was expected and what was found.
    """

    lane: str
    array: str
    file: str
    rows: Span | None
    message: str

    @property
    def is_stray(self) -> bool:
        """Whether it is about a file that does not belong to the store."""
        return self.message.startswith(STRAY)

    @property
    def is_of_rows(self) -> bool:
        """Whether rows are damaged, and not only the checksum or the rest of their file."""
        others = NO_CHECKSUM, WRONG_CHECKSUM, PAST_THE_END
        return self.rows is not None and not self.message.startswith(others)

    to_json = as_json

    def __str__(self) -> str:
        where = self.file
        if self.rows is not None:
            start, last = self.rows[0], self.rows[1] - 1
            where += f", row {start:,}" if last <= start else f", rows {start:,} to {last:,}"
        return f"{where}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What was read, and what is wrong with it.

    Attributes:
        state: as in `Store.info`; of many lanes the first of ``live``, ``crashed``, ``closed`` that
            any of them is in; ``unknown`` if no lane could be opened.
        lanes, rows, environments: that were examined, of all lanes.
        unflushed: rows of live lanes after their last flush, which were not examined.
        untrusted: rows after the last flush of a writer that died, which cannot be trusted here or
            after a restart; the next writer continues without them.
        files, bytes: that were read.
        from_start: whether no row before the damage can be sampled, in any lane: `repair` may keep
            none.
        findings: what is damaged; empty for a sound store.
        warnings: what is odd and harmless, such as a shard without a checksum.
    """

    path: str
    state: str
    lanes: int
    rows: int
    environments: int
    unflushed: int
    untrusted: int
    files: int
    bytes: int
    from_start: bool = False
    findings: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values, with `sound`."""
        return {"path": self.path, "sound": self.sound} | as_json(self)


class Notes:
    """Findings and warnings of one lane; `lane` is as in `Finding`."""

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self.findings: list[Finding] = []
        self.warnings: list[Finding] = []

    def find(self, file: str, text: str, array: str = "", rows: Span | None = None) -> None:
        """Note damage of a file, given by its path below the lane."""
        self.findings.append(Finding(self._lane, array, self._path(file), rows, text))

    def warn(self, file: str, text: str, array: str = "") -> None:
        """Note an oddity."""
        self.warnings.append(Finding(self._lane, array, self._path(file), None, text))

    def _path(self, file: str) -> str:
        return f"{self._lane}/{file}" if self._lane and file else file or self._lane


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
