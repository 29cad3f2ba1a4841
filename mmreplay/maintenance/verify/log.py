"""One log, file by file: a lane of one environment, or one of the two of a lane of many.

Invariant: what is said of a log is said of one state of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mmreplay.errors import MmreplayError
from mmreplay.format import layout
from mmreplay.format.columns import Column
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance import commit_records
from mmreplay.maintenance.verify import directory_names, documents, metadata, row_rules
from mmreplay.maintenance.verify.array_files import ArrayFiles
from mmreplay.maintenance.verify.chunk_files import (
    NO_CHECKSUM,
    WRONG_CHECKSUM,
    ChunkReader,
    unexplained,
)
from mmreplay.maintenance.verify.report import Finding, reason
from mmreplay.maintenance.verify.row_rules import Rows
from mmreplay.maintenance.verify.second_look import Watch, WriterChangedError
from mmreplay.reading.lane_state import lane_state
from mmreplay.reading.log_reader import LogReader
from mmreplay.storage import tail_file
from mmreplay.system import checked_reads
from mmreplay.writing.build_lane import generator_path

UNTRUSTED = "rows after the last flush that are not trusted"
"""In the warning about a state page that speaks of some."""


class LogExamination:
    """One log, examined once; `width` is that of one of ticks.

    Attributes:
        watch: its findings.
        arrays: those whose metadata can be used.
        state: ``closed``, ``live``, ``crashed`` or, if it cannot be opened, ``unknown``.
        n_rows: rows examined.
        untrusted: rows past the head that the state page speaks of.
        from_start: whether no row that can be sampled lies before the damage.
    """

    def __init__(
        self,
        watch: Watch,
        columns: Mapping[str, Column],
        width: int | None = None,
    ) -> None:
        self.watch, self._columns, self._width = watch, columns, width
        self.state = "unknown"
        self.n_rows = self.untrusted = 0
        self.from_start = False
        self.arrays = metadata.read_arrays(watch, columns, width)

    def run(self, open_reader: Callable[[], LogReader], locked: Path) -> None:
        """Examine; raises WriterChangedError if a writer opened or closed the log meanwhile.

        `open_reader` opens it, if it is not closed; `locked` is the lane's directory.
        """
        opened = self._open_closed() if self.watch.closed else self._open(open_reader, locked)
        if not opened:
            return
        self.n_rows = self._rows.head - self._rows.base
        self._rows.sound = "resets" in self.arrays.specs
        self._check_names()
        files = ArrayFiles(self.watch, self.arrays, self._rows, self._chunks, self.state)
        for path in sorted(self.arrays.specs, key=_reading_order):
            files.check_column(self.arrays.specs[path])
        if self.watch.closed and metadata.has_index(self._columns):
            files.check_index()
            self._check_first()
        files.check_priorities()
        self._see_from_start()

    def _see_from_start(self) -> None:
        """By what was found of the columns; what else is damaged can be made again."""
        base, prefix = self._rows.base, self.watch.prefix
        least = base + (layout.context_rows(self._width) if base else 1)
        lost = any(not (self.watch.path / path).exists() for path in self._columns)
        self.from_start = lost or any(
            one.rows is not None and one.rows[0] < least and one.rows[1] > base
            for one in unexplained(self.watch.findings)
            if one.array.removeprefix(prefix) in self._columns
            if one.message not in {NO_CHECKSUM, WRONG_CHECKSUM}
        )

    # ------------------------------------------------------------ which rows there are

    def _open_closed(self) -> bool:
        """Take the rows that zarr.json says."""
        watch, own = self.watch, self.watch.metadata or {}
        self.state = "closed"
        base = max(own["first"] - layout.context_rows(self._width), 0)
        self._rows = Rows(base, own["rows"], closed=True)
        self._chunks = ChunkReader(watch.path, self.arrays.sums, watch.tally.add, own["rows"])
        return True

    def _open(self, open_reader: Callable[[], LogReader], locked: Path) -> bool:
        """Follow a log that is not closed; False if nothing tells what rows it has."""
        watch = self.watch
        if not self.arrays.complete:
            return False  # each is a finding already
        try:
            reader = open_reader()
        except (MmreplayError, OSError) as error:  # it has looked again for long enough
            live = watch.path / ".live"
            text = reason(error, watch.path, live).removeprefix(f"{live}/")
            watch.note([watch.finding(".live", text)])
            return False
        if reader.metadata != watch.metadata:
            raise WriterChangedError
        watch.reader = reader
        self.state = lane_state(locked, closed=False)
        self._rows = Rows(reader.base, reader.head, closed=False)
        in_shards = min(reader.tail_start(), reader.head)
        self._chunks = ChunkReader(watch.path, self.arrays.sums, watch.tally.add, in_shards)
        if self.state == "crashed":
            watch.note(self._state_findings(reader))
            self._warn_of_untrusted(reader)
            watch.confirm(self._generator)
        return True

    def _warn_of_untrusted(self, reader: LogReader) -> None:
        """Rows after the last flush that the next writer goes on without."""
        if not reader.untrusted:
            return
        self.untrusted = reader.untrusted
        text = (
            f"speaks of {reader.untrusted:,} {UNTRUSTED}: it is "
            f"from before a restart of the system, an fsync of them failed, or this is a copy, and "
            f"the original has them"
        )
        self.watch.warnings.append(self.watch.finding(".live/state", text))

    def _state_findings(self, reader: LogReader) -> list[Finding]:
        """What the state page says of a lane that nobody writes now."""
        texts = []
        if reader.base > reader.head:
            texts.append(f"base: expected at most the head, {reader.head:,}, found {reader.base:,}")
        if reader.tails:
            texts.append(tail_file.tail_problem(reader.specs, reader.head, reader.tail_start()))
        if reader.is_live:
            texts.append(commit_records.newest_problem(self.watch.path, reader.specs, reader.head))
        if not any(texts):
            texts += commit_records.page_problems(self.watch.path, reader.metadata["uuid"])
        findings = [self.watch.finding(".live/state", text) for text in texts if text]
        if text := commit_records.checkpoint_problem(self.watch.path, reader.metadata["uuid"]):
            findings.append(self.watch.finding(".live/checkpoint", text))
        return findings

    def _generator(self) -> tuple[list[Finding], None]:
        """The random state, if one was saved with the last flush."""
        watch, texts = self.watch, list[str]()
        try:
            path = generator_path(watch.path)
            data = checked_reads.read_bytes(path, layout.MAX_METADATA_BYTES)
            texts = list(documents.generator_problems(data))
        except FileNotFoundError:
            pass
        except (MmreplayError, OSError) as error:
            texts = [f"generator: {reason(error, generator_path(watch.path))}"]
        return [watch.finding(".live/generator", text) for text in texts], None

    # ------------------------------------------------------------ names

    def _check_names(self) -> None:
        """There is nothing else in the log's directories."""
        watch = self.watch
        known: dict[str, tuple[ArraySpec, range] | None]
        known = dict.fromkeys(metadata.array_paths(self._columns))
        known[layout.checksum_spec("priorities").path] = None
        specs = dict(self.arrays.specs)
        if self.arrays.priorities is not None:
            specs[self.arrays.priorities.path] = self.arrays.priorities
        for path, spec in specs.items():
            chunks = self._rows.chunks(spec, self._rows.head)
            known[path] = (spec, chunks)
            sums = self.arrays.sums.get(path)
            if sums is not None:
                known[sums.path] = (sums, range(-(-chunks.stop // sums.chunk_rows)))
        if self.arrays.starts is not None:
            index, count = self.arrays.starts
            known[index.path] = (index, range(-(-count // index.chunk_rows)))

        def check() -> tuple[list[Finding], list[Finding]]:
            foreign: list[Finding] = []
            litter: list[Finding] = []
            for path, text, is_litter in directory_names.foreign_in_lane(
                watch.path, known, self.state
            ):
                folder = path.rpartition("/")[0]
                finding = watch.finding(path, text, folder if folder in known else "")
                (litter if is_litter else foreign).append(finding)
            return foreign, litter

        litter = watch.confirm(check)
        if litter and self.state == "closed":
            watch.check_same_writer()  # not litter, but the work of a writer that just opens it
        watch.warnings += litter

    def _check_first(self) -> None:
        """The oldest row that zarr.json names is that of the capacity."""
        own = self.watch.metadata or {}
        problems, odd = row_rules.check_first(self._rows, own["first"], own.get("capacity"))
        self.watch.note([self.watch.finding("zarr.json", problem.message) for problem in problems])
        self.watch.warnings += [self.watch.finding("zarr.json", problem.message) for problem in odd]


def _reading_order(path: str) -> tuple[int, str]:
    """The reset bits first: the rules for the other columns need them."""
    return {"resets": 0, "non_terminals": 1}.get(path, 2), path
