"""One lane: compares its contents with its own zarr.json, state pages and checkpoints.

Invariant: all findings are about one state of the lane; if it was opened or closed meanwhile, it is
examined again. No file that does not belong to it is opened, and no link is followed.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Collection, Iterator, Mapping

from mmreplay.errors import CorruptStoreError, LockedError, MmreplayError
from mmreplay.format import layout
from mmreplay.format.layout import (
    CONTEXT_ROWS,
    EPISODES,
    FINALS,
    PRIORITIES,
    ArraySpec,
    group_paths,
)
from mmreplay.maintenance.verify.chunks import ChunkChecker
from mmreplay.maintenance.verify.documents import Documents, Log, generator_problem
from mmreplay.maintenance.verify.report import STRAY, ByteCount, Notes, Span, reason
from mmreplay.maintenance.verify.rules import Rules, begins_of
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.state_page import COMMITTED, PAGE_BYTES, SESSION, CheckpointFile, State
from mmreplay.system import checked_reads, locks
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.build_lane import generator_path

_ATTEMPTS = 100
_PATIENCE_S = 0.05
_DERIVED = {"derived", "checksums/derived"}
CUT_OFF = "an add_column or drop_column was interrupted; call it again"

_Arrays = Mapping[str, tuple[ArraySpec, range] | None]
"""By path below the lane: an array and the chunk files it may have; None: not to be checked."""


def examine(root: AnyPath, path: AnyPath, tally: ByteCount) -> Examination:
    """Examine a lane; raises LockedError if a writer keeps opening and closing it."""
    read = (tally.files, tally.bytes)
    for _ in range(_ATTEMPTS):  # a closed lane that is locked is being opened or closed
        tally.files, tally.bytes = read
        before = _moment(path)
        out = Examination(root, path, tally)
        out.run()
        if not (out.findings or out.warnings):
            return out
        now = _moment(path)
        if now == before and not (out.state == "closed" and now[-1]):
            return out
        time.sleep(_PATIENCE_S)
    raise LockedError(
        f"{path}: a writer opened or closed this lane {_ATTEMPTS} times while it was being "
        f"verified; verify it again when it is done"
    )


def _moment(path: AnyPath) -> tuple[object, ...]:
    """What changes when a lane is opened for writing, or closed."""
    stamp = session = None
    with contextlib.suppress(OSError):
        about = (path / "zarr.json").lstat()
        stamp = about.st_ino, about.st_mtime_ns
    if (state := _read_state(path)) is not None:
        session = state.words[SESSION]
    return stamp, session, locks.is_locked(path)


class Examination:
    """One lane, examined once; attributes as of `Report`, for this lane; see `Documents`."""

    def __init__(
        self, root: AnyPath, path: AnyPath, tally: ByteCount, *, copy_first: bool = False
    ) -> None:
        self.path, self.lane, self._tally = path, "" if path == root else path.name, tally
        self.notes = Notes(self.lane)
        self.findings, self.warnings = self.notes.findings, self.notes.warnings
        self.documents = Documents(path, self.notes, tally, copy_first=copy_first)
        self.episodes, self._begun = self.documents.episodes, (0, 0)
        self.state = "unknown"
        self.environments = 1
        self.n_rows = self.unflushed = self.untrusted = 0
        self.from_start = False

    def run(self) -> None:
        """Examine it."""
        if self.documents.logs is None:
            return  # which is a finding already
        (rows, finals), own = self.documents.logs, self.documents.metadata
        self.environments = rows.n
        if own["closed"]:
            self.state = "closed"
            rows.take(max(own["first"] - CONTEXT_ROWS, 0), own["rows"])
            finals.take(own["first_final"], own["finals"])
            self.episodes.base = own["episodes_before"]
        elif not self._open(rows, finals, str(own["uuid"])):
            return
        self.n_rows = rows.head - rows.base
        self._check_arrays(rows, finals)
        self._check_episodes(rows)
        if self.state == "live":
            self._forget_evicted(rows, finals, str(own["uuid"]))
        self._check_names(rows, finals)
        self._see_from_start(rows)

    def _open(self, rows: Log, finals: Log, uuid: str) -> bool:
        """Choose the rows of an open lane that are durable, or after a crash will be kept."""
        try:
            reader = LaneReader(self.path, given=self.documents.lane, mends=True)
        except (MmreplayError, OSError) as error:
            text = reason(error, self.path)
            folder = f"{FINALS}/.live" if text.startswith(f"{self.path}/{FINALS}") else ".live"
            self.notes.find(folder, reason(error, self.path, self.path / folder))
            return False
        for log in (rows, finals):
            if _read_state(log.path) is None:
                text = f"expected a page of {PAGE_BYTES:,} bytes that begins with MMRSTATE"
                self.notes.find(f"{log.prefix}.live/state", f"{text}; found none")
        if not locks.is_locked(self.path):
            self.state, rows.is_all = "crashed", reader.is_live
            for log, one in ((rows, reader.rows), (finals, reader.finals)):
                log.take(one.base, one.head, one.tail_start())
            self._begun = reader.begun_before()
            self._check_private(rows, finals, uuid, reader.rows.untrusted)
            return True
        self.state = "live"
        # In this order: a flush writes the checkpoint of the finals first, and finals go once that
        # of the rows lets their rows go.
        first, of_finals, newest = (
            _read_checkpoint(log.path, uuid) for log in (rows, finals, rows)
        )
        if first is None or of_finals is None or newest is None:
            self.notes.find(".live", "expected a checkpoint, found none")
            return False
        rows.take(min(newest.best.base, first.best.head), first.best.head, first.best.tail_start)
        finals.take(of_finals.best.base, of_finals.best.head, of_finals.best.tail_start)
        self._begun = newest.best.base, newest.best.before
        self.unflushed = max(reader.head - rows.head, 0) + reader.rows.untrusted
        return True

    def _check_private(self, rows: Log, finals: Log, uuid: str, untrusted: int) -> None:
        """Check the `.live` of a crashed lane."""
        for log in (rows, finals):
            for file, text in _commit_problems(log.path, uuid):
                self.notes.find(f"{log.prefix}.live/{file}", text)
        if untrusted:
            self.untrusted = untrusted
            text = (
                f"has {untrusted:,} rows after the last flush that are not trusted: it is from "
                f"before a restart of the system, an fsync of them failed, or this is a copy and "
                f"the original has them"
            )
            self.notes.warn(".live/state", text)
        path, text = generator_path(self.path), ""
        try:
            text = generator_problem(checked_reads.read_bytes(path, layout.MAX_GENERATOR_BYTES))
        except FileNotFoundError:
            pass
        except (MmreplayError, OSError) as error:
            text = f"generator: {reason(error, path)}"
        if text:
            self.notes.find(".live/generator", text)

    def _forget_evicted(self, rows: Log, finals: Log, uuid: str) -> None:
        """Drop findings about rows that were evicted meanwhile."""
        found = [_read_checkpoint(log.path, uuid) for log in (rows, finals)]
        base, final_base = (0 if one is None else one.best.base for one in found)
        bases = {FINALS: final_base, EPISODES: 0 if found[0] is None else found[0].best.before}
        self.findings[:] = [
            one
            for one in self.findings
            if one.rows is None or one.rows[0] >= bases.get(one.array.partition("/")[0], base)
        ]

    def _check_arrays(self, rows: Log, finals: Log) -> None:
        """Check each chunk file, and the rules for the rows in them."""
        checker = ChunkChecker(self.notes, self._tally, self.state)
        for log in (rows, finals):
            for path, spec in log.specs.items():
                if not (spec.may_change and self.state == "live"):  # its values are changing
                    checker.check(log, path)
        rules = Rules(rows, finals)
        try:
            rules.check(self.findings)
        except (MmreplayError, OSError) as error:
            if self.state != "live":  # else they were evicted
                self.notes.find("", reason(error, self.path))
        rules.note(self.notes)

    def _check_episodes(self, rows: Log) -> None:
        """Check the fields of the episodes whose first steps are examined."""
        log, checker = self.episodes, ChunkChecker(self.notes, self._tally, self.state)
        lost = collections.defaultdict[str, list[Span]](list)
        for one in self.findings:
            if one.is_of_rows and one.rows is not None:
                lost[one.array].append(one.rows)
        try:
            n_begun = (begun := begins_of(rows, rows.n, lost, rows.base, rows.head)).size
            if not log.closed:
                row, before = self._begun
                log.base = before - int(begun.searchsorted(row * rows.n))
                log.head = log.base + n_begun
        except (MmreplayError, OSError):
            n_begun = log.head - log.base  # damaged, which is a finding, or evicted
        for path in log.specs:
            checker.check(log, path)
            if log.closed and n_begun != log.head - log.base and not self.findings:
                text = f"shape: expected {log.base + n_begun:,} episodes, as `resets` says"
                self.notes.find(f"{path}/zarr.json", f"{text}; found {log.head:,}", path)

    def _check_names(self, rows: Log, finals: Log) -> None:
        known: dict[str, tuple[ArraySpec, range] | None] = {}
        known[layout.checksum_spec(PRIORITIES).path] = None
        if (self.path / PRIORITIES).exists():
            known[PRIORITIES] = None
        for log in (rows, finals, self.episodes):
            for path, spec in log.specs.items():
                chunks = range(log.base // spec.chunk_rows, -(-log.head // spec.chunk_rows))
                known[log.prefix + path] = spec, chunks
                if (sums := log.sums.get(path)) is not None:
                    files = range(-(-chunks.stop // sums.chunk_rows))
                    known[log.prefix + sums.path] = sums, files
        for path, text in _foreign_in_lane(self.path, known, self.state):
            folder = path.rpartition("/")[0]
            if not {path, folder}.isdisjoint(_DERIVED):
                self.notes.warn(path, f"a column that is not in the schema: {CUT_OFF}")
                continue
            self.notes.find(path, text, folder if folder in known else "")

    def _see_from_start(self, rows: Log) -> None:
        """By the findings about columns; everything else can be rebuilt."""
        least = min(rows.base + (CONTEXT_ROWS if rows.base else 1), rows.head)
        self.from_start = any(
            one.is_of_rows and one.rows and one.rows[0] < least and one.rows[1] > rows.base
            for one in self.findings
            if one.array in rows.specs and not rows.specs[one.array].may_change
        )


def _read_checkpoint(lane: AnyPath, store: str) -> CheckpointFile | None:
    """The lane's checkpoint; None if it cannot be read, or is of another uuid than `store`."""
    with contextlib.suppress(OSError, CorruptStoreError):
        checked_reads.check_directories(lane, ".live")
        return CheckpointFile(lane / ".live" / "checkpoint", store)
    return None


def _read_state(lane: AnyPath) -> State | None:
    """The lane's state page; None if it cannot be read."""
    with contextlib.suppress(OSError, CorruptStoreError):
        checked_reads.check_directories(lane, ".live")
        return State(lane / ".live" / "state", writable=False)
    return None


def _commit_problems(lane: AnyPath, store: str) -> list[tuple[str, str]]:
    """(file, what is wrong) of the state page and the checkpoint of a lane that can be opened."""
    checkpoint, page = _read_checkpoint(lane, store), _read_state(lane)
    out = list[tuple[str, str]]()
    if checkpoint is None or page is None:
        return out  # has a finding already
    if page.is_of_this_boot() and page.boot == checkpoint.best.boot:
        head, committed = checkpoint.best.head, page.words[COMMITTED]
        if committed < head:
            text = f"committed: expected at least the head of the checkpoint, {head:,}"
            out.append(("state", f"{text}, found {committed:,}"))
        out += (("state", text) for text in page.ahead_of(checkpoint))
    return out


def _foreign_in_lane(lane: AnyPath, arrays: _Arrays, state: str) -> Iterator[tuple[str, str]]:
    """As `foreign`, in all of a lane's directories; `arrays` are all that it may have."""
    children: dict[str, set[str]] = {log: {".live"} for log in ("", FINALS)}
    for path in (FINALS, *group_paths(arrays), *arrays):
        parent, _, name = path.rpartition("/")
        children.setdefault(parent, set()).add(name)
    for folder, names in children.items():
        yield from foreign(lane, names, "expected arrays and groups of the schema only", folder)
    for path, known in arrays.items():
        if known is not None:
            yield from _foreign_in_array(lane, path, *known, state)


def foreign(
    root: AnyPath, known: Collection[str], expected: str, folder: str = ""
) -> Iterator[tuple[str, str]]:
    """(path, what is wrong) of what does not belong beside directories of names `known`."""
    for name, path in _entries(root, folder):
        there = root / path
        if name not in known:
            yield path, f"{STRAY}: {expected}"
        elif there.is_symlink() or (there.exists() and not there.is_dir()):
            yield path, "expected a directory, found a link or a file"


def _entries(root: AnyPath, folder: str) -> Iterator[tuple[str, str]]:
    """Names and paths in a directory, without zarr.json and what an interrupted write left."""
    found: list[str] = []
    with contextlib.suppress(OSError, CorruptStoreError):
        if folder:
            checked_reads.check_directories(root, folder)
        found = checked_reads.names(root / folder)
    for name in found:
        if name != "zarr.json" and not name.endswith(".tmp"):
            yield name, f"{folder}/{name}" if folder else name


def _foreign_in_array(
    lane: AnyPath, path: str, spec: ArraySpec, chunks: range, state: str
) -> Iterator[tuple[str, str]]:
    for name, file in _entries(lane, path):
        chunk = spec.chunk_of(name)
        if chunk is None:
            yield file, f"{STRAY}: expected chunk files only"
        elif chunk in chunks:
            continue  # its rows are read
        elif state != "closed":  # it preallocates files, and may be evicting some
            if (lane / file).is_symlink() or (lane / file).is_dir():
                yield file, "expected a chunk file, found a link or a directory"
        elif not (chunk == chunks.stop and (lane / ".live").exists()):
            # Else of the pending row: its writer died at the end of its close.
            start, stop = chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows
            yield file, f"{STRAY}: expected no chunk file for rows {start:,} to {stop - 1:,}"
