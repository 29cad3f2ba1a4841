"""One lane, file by file.

Invariant: what is said of a lane is said of one state of it; when a writer opened or closed it
meanwhile, it is examined anew.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from mmreplay import columns, format, reading, shards
from mmreplay.columns import Array, Ids, chunk_path
from mmreplay.errors import LockedError, MmreplayError
from mmreplay.format import ArraySpec
from mmreplay.info import lane_state
from mmreplay.integrity import documents, extent, metadata, rules, tree
from mmreplay.integrity.chunks import ChunkReader
from mmreplay.integrity.metadata import Arrays
from mmreplay.integrity.report import Finding
from mmreplay.integrity.rules import Problem, Rows
from mmreplay.integrity.watch import ChangedHandsError, Tally, Watch
from mmreplay.reader import LaneReader
from mmreplay.recovery import generator_path
from mmreplay.schema import Schema

__all__ = ["Examination", "examine"]

_FEW = 16  # missing files that each have a finding
_ATTEMPTS = 200
_PATIENCE_S = 0.05


def examine(root: Path, path: Path, tally: Tally) -> Examination:
    """Examine the lane at `path` of the store at `root`.

    Raises:
        LockedError: a writer opens and closes it all the time.
    """
    read = (tally.files, tally.bytes)
    for _ in range(_ATTEMPTS):
        tally.files, tally.bytes = read
        out = Examination(Watch(root, path, tally))
        try:
            out.run()
        except ChangedHandsError:
            time.sleep(_PATIENCE_S)
        else:
            return out
    raise LockedError(
        f"{path}: a writer opened or closed this lane {_ATTEMPTS} times while it was being "
        f"verified; verify it again when it is done"
    )


class Examination:
    """One lane, examined once.

    Attributes:
        watch: its findings.
        arrays: those whose metadata can be used.
        state: ``closed``, ``live``, ``crashed`` or, if it cannot be opened, ``unknown``.
        n_rows: rows examined.
        untrusted: rows past the head that the state page speaks of.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.arrays = Arrays()
        self.state = "unknown"
        self.n_rows = self.untrusted = 0

    def run(self) -> None:
        """Examine.

        Raises:
            ChangedHandsError: a writer opened or closed the lane meanwhile.
        """
        if not metadata.read_root(self.watch):
            return
        schema = metadata.read_schema(self.watch)
        if schema is None:
            return
        self.arrays = metadata.read_arrays(self.watch, schema)
        opened = self._open_closed() if self.watch.closed else self._open()
        if not opened:
            return
        self.n_rows = self._rows.head - self._rows.base
        self._rows.sound = "resets" in self.arrays.specs
        self._check_names(schema)
        for path in sorted(self.arrays.specs, key=_reading_order):
            self._check_column(self.arrays.specs[path])
        if self.watch.closed:
            self._check_index()
            self._check_first()
        self._check_priorities()

    # ------------------------------------------------------------ which rows there are

    def _open_closed(self) -> bool:
        watch, own = self.watch, self.watch.metadata or {}
        self.state = "closed"
        self._rows = Rows(max(own["first"] - format.CONTEXT_ROWS, 0), own["rows"], closed=True)
        self._chunks = ChunkReader(watch.path, self.arrays.sums, watch.tally.add, own["rows"])
        return True

    def _open(self) -> bool:
        """Follow a lane that is not closed; False if nobody can say what rows it has."""
        watch = self.watch
        if not self.arrays.complete:
            return False  # each is a finding already

        try:
            reader = LaneReader(watch.path)
        except (MmreplayError, OSError) as error:  # it has looked again for long enough
            live = watch.path / ".live"
            text = documents.reason(error, watch.path, live).removeprefix(f"{live}/")
            watch.note([watch.finding(".live", text)])
            return False
        if reader.metadata != watch.metadata:
            raise ChangedHandsError
        watch.reader = reader
        self.state = lane_state(watch.path, closed=False)
        self._rows = Rows(reader.base, reader.head, closed=False)
        in_shards = min(reader.tail_start(), reader.head)
        self._chunks = ChunkReader(watch.path, self.arrays.sums, watch.tally.add, in_shards)
        if self.state == "crashed":
            watch.note(self._state_findings(reader))
            self._warn_of_untrusted(reader)
            watch.settle(self._generator)
        return True

    def _warn_of_untrusted(self, reader: LaneReader) -> None:
        if not reader.untrusted:
            return
        self.untrusted = reader.untrusted
        text = (
            f"speaks of {reader.untrusted:,} rows after the last flush that are not trusted: it is "
            f"from before a restart of the system, an fsync of them failed, or this is a copy, and "
            f"the original has them"
        )
        self.watch.warnings.append(self.watch.finding(".live/state", text))

    def _state_findings(self, reader: LaneReader) -> list[Finding]:
        """What the state page says of a lane that nobody writes now."""
        texts = []
        if reader.base > reader.head:
            texts.append(f"base: expected at most the head, {reader.head:,}, found {reader.base:,}")
        if reader.tails:
            texts.append(shards.tail_problem(reader.specs, reader.head, reader.tail_start()))
        if reader.is_live:
            texts.append(extent.newest_problem(self.watch.path, reader.specs, reader.head))
        if not any(texts):
            texts += extent.page_problems(self.watch.path, reader.metadata["uuid"])
        found = [self.watch.finding(".live/state", text) for text in texts if text]
        if text := extent.checkpoint_problem(self.watch.path, reader.metadata["uuid"]):
            found.append(self.watch.finding(".live/checkpoint", text))
        return found

    def _generator(self) -> tuple[list[Finding], None]:
        """The random state, if one was saved with the last flush."""
        watch, texts = self.watch, list[str]()
        try:
            path = generator_path(watch.path)
            texts = list(
                documents.generator_problems(reading.read_bytes(path, format.MAX_METADATA_BYTES))
            )
        except FileNotFoundError:
            pass
        except (MmreplayError, OSError) as error:
            texts = [f"generator: {documents.reason(error, generator_path(watch.path))}"]
        return [watch.finding(".live/generator", text) for text in texts], None

    def _kept_chunks(self, spec: ArraySpec, stop: int) -> range:
        """The chunk files that hold rows from base to `stop`."""
        return range(self._rows.base // spec.chunk_rows, -(-stop // spec.chunk_rows))

    # ------------------------------------------------------------ names

    def _check_names(self, schema: Schema) -> None:
        """There is nothing else in the lane's directories."""
        watch = self.watch
        known: dict[str, tuple[ArraySpec, range] | None]
        known = dict.fromkeys(metadata.array_paths(schema))
        known[format.checksum_spec("priorities").path] = None
        for path, spec in self.arrays.specs.items():
            chunks = self._kept_chunks(spec, self._rows.head)
            known[path] = (spec, chunks)
            sums = self.arrays.sums.get(path)
            if sums is not None:
                known[sums.path] = (sums, range(-(-chunks.stop // sums.chunk_rows)))
        if self.arrays.starts is not None:
            index, count = self.arrays.starts
            known[index.path] = (index, range(-(-count // index.chunk_rows)))
        if self.arrays.priorities is not None:
            one = self.arrays.priorities
            chunks = self._kept_chunks(one, self._rows.head)
            known[one.path] = (one, chunks)
            sums = self.arrays.sums.get(one.path)
            if sums is not None:
                known[sums.path] = (sums, range(-(-chunks.stop // sums.chunk_rows)))

        def check() -> tuple[list[Finding], list[Finding]]:
            found: list[Finding] = []
            litter: list[Finding] = []
            for path, text, is_litter in tree.foreign_in_lane(watch.path, known, self.state):
                folder = path.rpartition("/")[0]
                one = watch.finding(path, text, folder if folder in known else "")
                (litter if is_litter else found).append(one)
            return found, litter

        litter = watch.settle(check)
        if litter and self.state == "closed":
            watch.same_hands()  # not litter, but the work of a writer that just opens it
        watch.warnings += litter

    # ------------------------------------------------------------ columns

    def _check_column(self, spec: ArraySpec) -> None:
        watch, rows = self.watch, self._rows
        before = len(watch.findings)
        rows.last_flag = None
        kept = self._kept_chunks(spec, rows.head if spec.is_raw else self._chunks.in_shards)
        for chunk in self._worth_a_look(spec, kept):
            known = watch.settle(partial(self._look, spec, chunk))
            if known is not None:
                rows.starts, rows.last_flag = known.starts, known.last_flag
        for chunk in self._chunks.without_checksum():
            file = f"{spec.path}/{spec.key(chunk)}"
            text = "has no checksum: only its inner chunks could be checked"
            watch.warnings.append(watch.finding(file, text, spec.path))
        if spec.path == "resets" and len(watch.findings) > before:
            rows.sound = False
        if self.state != "live" and spec.path in self.arrays.sums:
            self._check_sums(spec)

    def _worth_a_look(self, spec: ArraySpec, kept: range) -> Iterator[int]:
        """The chunk files among `kept` that are there, and those missing if they are not many.

        Metadata may speak of any number of rows; the others make one finding for each gap.
        """
        there = [chunk for chunk in self._there(spec) if chunk in kept]
        for before, chunk in itertools.pairwise([kept.start - 1, *there, kept.stop]):
            gap = range(before + 1, chunk)
            if len(gap) > _FEW:
                self.watch.settle(partial(self._look_for, spec, gap))
            else:
                yield from gap
            if chunk < kept.stop:
                yield chunk

    def _there(self, spec: ArraySpec) -> list[int]:
        try:
            return columns.chunk_files(self.watch.path, spec)
        except OSError:
            return []  # a finding of its own

    def _look_for(self, spec: ArraySpec, gap: range) -> tuple[list[Finding], None]:
        """That there is still none of these chunk files."""
        stop = min(gap.stop * spec.chunk_rows, self._rows.head)
        if self.watch.evicted(stop):
            self._rows.base = max(self._rows.base, stop)
            return [], None
        rows = (max(gap.start * spec.chunk_rows, self._rows.base), stop)
        text = f"expected this chunk file and {len(gap) - 1:,} after it, found none"
        return [
            self.watch.finding(f"{spec.path}/{spec.key(gap.start)}", text, spec.path, rows)
        ], None

    def _look(self, spec: ArraySpec, chunk: int) -> tuple[list[Finding], Rows | None]:
        """What is wrong with a chunk file, and what is known after it if it is raw."""
        start, stop = chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows
        whole = (max(start, self._rows.base), min(stop, self._rows.head))
        known: Rows | None = None
        try:
            if spec.is_raw:
                problems, known = self._chunks.raw(spec, chunk, self._rows)
            else:
                problems = self._chunks.shard(spec, chunk, self._rows)
        except FileNotFoundError:
            if self.watch.evicted(stop):
                self._rows.base = max(self._rows.base, stop)
                return [], None
            problems = [Problem("expected this chunk file, found none")]
        except (MmreplayError, OSError) as error:
            problems = [Problem(documents.reason(error, chunk_path(self.watch.path, spec, chunk)))]
        file = f"{spec.path}/{spec.key(chunk)}"
        return [
            self.watch.finding(file, one.message, spec.path, one.rows or whole) for one in problems
        ], known

    # ------------------------------------------------------------ checksums and index

    def _check_sums(self, spec: ArraySpec) -> None:
        """Past the last checksum of a closed lane lie zeros; an open one may have more."""
        sums = self.arrays.sums[spec.path]
        n_chunks = -(-self._rows.head // spec.chunk_rows)
        for file in self._there(sums):
            n_here = n_chunks - file * sums.chunk_rows if self.watch.closed else sums.chunk_rows
            if n_here <= 0:
                continue  # it has no business there: a finding of its own
            if not self.watch.closed and self._is_empty(sums, file):
                continue  # a power cut leaves the name of a file whose length was not durable yet
            # A file that is not there is named for each chunk file that has no checksum then.
            read = partial(self._entries, sums, file, n_here, "checksums", missing_ok=True)
            self.watch.settle(read)

    def _is_empty(self, spec: ArraySpec, file: int) -> bool:
        path = chunk_path(self.watch.path, spec, file)
        try:
            data = reading.read_bytes(path, spec.chunk_bytes)
            return len(data) < spec.chunk_bytes and not any(data)
        except (MmreplayError, OSError):
            return False  # a finding of its own

    def _check_index(self) -> None:
        """``episodes/starts`` holds the rows with a reset."""
        if self.arrays.starts is None:
            return
        spec, count = self.arrays.starts
        parts = [np.empty(0, np.int64)]
        for file in range(-(-count // spec.chunk_rows)):
            n_here = count - file * spec.chunk_rows
            part = self.watch.settle(partial(self._entries, spec, file, n_here, "entries"))
            if part is None:
                return
            parts.append(part.astype(np.int64))
        stored: Ids = np.concatenate(parts)
        self.watch.note(
            [
                self.watch.finding(spec.path, one.message, spec.path)
                for one in rules.check_index(stored, self._rows)
            ]
        )

    def _entries(
        self, spec: ArraySpec, file: int, n_entries: int, what: str, *, missing_ok: bool = False
    ) -> tuple[list[Finding], Array | None]:
        """The entries in a chunk file of an array that holds no rows; past them lie zeros."""
        data: Array | None = None
        problems: list[Problem] = []
        try:
            whole = self._chunks.whole(spec, file)
            data = whole.view(spec.dtype)[:n_entries]
            problems = rules.zero_past(whole[data.nbytes :], n_entries, what)
        except FileNotFoundError:
            if not missing_ok:
                problems = [Problem("expected this chunk file, found none")]
        except (MmreplayError, OSError) as error:
            problems = [Problem(documents.reason(error, chunk_path(self.watch.path, spec, file)))]
        name = f"{spec.path}/{spec.key(file)}"
        return [self.watch.finding(name, one.message, spec.path) for one in problems], data

    def _check_priorities(self) -> None:
        """Priorities are finite and not negative; rows may have none, and files may be missing."""
        if self.arrays.priorities is None or self.state == "live":
            return  # they change all the time
        spec = self.arrays.priorities
        kept = self._kept_chunks(spec, self._rows.head)
        there = set(self._there(spec)) | self._with_checksums(spec)
        for chunk in sorted(chunk for chunk in there if chunk in kept):
            self.watch.settle(partial(self._look_at_priorities, spec, chunk))
        if spec.path in self.arrays.sums:
            self._check_sums(spec)

    def _is_short(self, spec: ArraySpec, chunk: int) -> bool:
        path = chunk_path(self.watch.path, spec, chunk)
        return reading.regular_size(path, spec.chunk_bytes) < spec.chunk_bytes

    def _with_checksums(self, spec: ArraySpec) -> set[int]:
        """The chunks that files of checksums, which are there, have room for."""
        sums = self.arrays.sums.get(spec.path)
        if sums is None:
            return set()
        files_there = (file * sums.chunk_rows for file in self._there(sums))
        return {chunk for start in files_there for chunk in range(start, start + sums.chunk_rows)}

    def _look_at_priorities(self, spec: ArraySpec, chunk: int) -> tuple[list[Finding], None]:
        problems: list[Problem] = []
        try:
            if not self.watch.closed and self._is_short(spec, chunk):
                return [], None  # its maker died before it had its blocks; the next one goes on
            problems, _ = self._chunks.raw(spec, chunk, self._rows)
            values = self._chunks.whole(spec, chunk).view(spec.dtype)
            wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
            if wrong.size:
                row, value = chunk * spec.chunk_rows + int(wrong[0]), values[wrong[0]]
                text = f"expected finite priorities of 0 or more, found {value}"
                problems.append(Problem(text, (row, row + 1)))
        except FileNotFoundError:
            if self._chunks.checksum(spec, chunk):
                problems = [Problem("expected this chunk file, found none")]
        except (MmreplayError, OSError) as error:
            path = chunk_path(self.watch.path, spec, chunk)
            problems = [Problem(documents.reason(error, path))]
        file = f"{spec.path}/{spec.key(chunk)}"
        start = chunk * spec.chunk_rows
        whole = (max(start, self._rows.base), min(start + spec.chunk_rows, self._rows.head))
        return [
            self.watch.finding(file, one.message, spec.path, one.rows or whole) for one in problems
        ], None

    def _check_first(self) -> None:
        own = self.watch.metadata or {}
        problems, odd = rules.check_first(self._rows, own["first"], own.get("capacity"))
        self.watch.note([self.watch.finding("zarr.json", one.message) for one in problems])
        self.watch.warnings += [self.watch.finding("zarr.json", one.message) for one in odd]


def _reading_order(path: str) -> tuple[int, str]:
    """The reset bits first: the rules for the other columns need them."""
    return {"resets": 0, "non_terminals": 1}.get(path, 2), path
