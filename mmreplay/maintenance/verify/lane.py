"""One lane: what stands in it against what its own zarr.json says, in one pass.

Invariant: what is said of a lane is said of one state of it; if it was opened or closed meanwhile,
it is examined again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from mmreplay.episode_index import floor_row
from mmreplay.errors import LockedError, MmreplayError
from mmreplay.format import layout
from mmreplay.format.layout import CONTEXT_ROWS, FINALS
from mmreplay.maintenance import commit_records
from mmreplay.maintenance.verify import names
from mmreplay.maintenance.verify.chunks import NO_CHECKSUM, WRONG_CHECKSUM, ChunkReader
from mmreplay.maintenance.verify.documents import PRIORITIES, Documents, Log, generator_problems
from mmreplay.maintenance.verify.report import Finding, Notes, Tally, reason
from mmreplay.maintenance.verify.rules import Rules
from mmreplay.storage import tail_file
from mmreplay.storage.checkpoint import CheckpointFile, check_rows
from mmreplay.storage.state_page import (
    BASE,
    COMMITTED,
    EPISODES_BEFORE,
    SESSION,
    TAIL_START,
    State,
)
from mmreplay.system import checked_reads, locks
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.build_lane import generator_path

__all__ = ["Examination", "examine"]

_ATTEMPTS = 100
_PATIENCE_S = 0.05


def examine(root: AnyPath, path: AnyPath, tally: Tally) -> Examination:
    """Examine a lane; raises LockedError if a writer opens and closes it all the time."""
    read = (tally.files, tally.bytes)
    for _ in range(_ATTEMPTS):  # a closed lane that is locked is just being opened, or closed
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
    if (state := commit_records.read_state(path)) is not None:
        session = state.words[SESSION]
    return stamp, session, locks.is_locked(path)


class Examination:
    """One lane, examined once.

    Attributes:
        lane: the directory's name in a store of many lanes; empty in a store of one.
        documents: its zarr.json files.
        notes: takes what is found.
        findings, warnings: what is damaged, and what is odd.
        state: ``closed``, ``live``, ``crashed`` or, if it cannot be opened, ``unknown``.
        environments: of the lane, as far as that is known.
        n_rows: rows examined.
        unflushed: rows after the last flush of a live lane.
        untrusted: rows past the head that the state page of a crashed one speaks of.
        from_start: whether no row that can be sampled lies before its damage.
    """

    def __init__(self, root: AnyPath, path: AnyPath, tally: Tally) -> None:
        self.path, self.lane, self._tally = path, "" if path == root else path.name, tally
        self.notes = Notes(self.lane)
        self.findings, self.warnings = self.notes.findings, self.notes.warnings
        self.documents = Documents(path, self.notes, tally)
        self.state = "unknown"
        self.environments = 1
        self.n_rows = self.unflushed = self.untrusted = 0
        self.from_start = False

    def run(self) -> None:
        """Examine it."""
        logs = self.documents.logs
        own = self.documents.metadata
        if logs is None or own is None:
            return
        rows, finals = logs
        self.environments = rows.n
        if own["closed"]:
            self.state = "closed"
            before = own["episodes_before"]
            self._take(rows, own["rows"], max(own["first"] - CONTEXT_ROWS, 0))
            self._take(finals, own["finals"], own["first_final"])
        elif any(log.columns.keys() - log.specs.keys() for log in logs):
            return  # each array is a finding already
        elif (found := self._open(rows, finals, own["capacity"])) is None:
            return
        else:
            before = found
        self.n_rows = rows.head - rows.base
        first = own["first"] if own["closed"] else floor_row(rows.base)
        reader = ChunkReader(self.notes, self._tally, self.state)
        rules = Rules(rows, finals, reader, first)
        self._check_arrays(rows, finals, rules)
        rules.note(self.notes, self._bases(rows, finals))
        self._check_numbers(rows, finals, before, first, rules)
        self._check_names(rows, finals)
        self._see_from_start(rows)

    # ------------------------------------------------------------ which rows there are

    @staticmethod
    def _take(log: Log, head: int, base: int, in_shards: int | None = None) -> None:
        log.base, log.head = base, head
        log.in_shards = head if in_shards is None else min(in_shards, head)

    def _open(self, rows: Log, finals: Log, capacity: int | None) -> int | None:
        """Find out which rows of a lane that is not closed are to be examined.

        Of a live one those that are durable; of one that was left by a crash those that the next
        writer keeps. Returns how many episodes began before them; None if nothing tells.
        """
        is_live = locks.is_locked(self.path)
        found: list[tuple[State, CheckpointFile]] = []
        for log in (rows, finals):  # in this order: a flush writes those of the finals first
            pair = self._read_live(log, capacity)
            if pair is None:
                return None
            found.append(pair)
        (page, checkpoint), (final_page, final_checkpoint) = found
        self.state, trusted = "live" if is_live else "crashed", False
        if not is_live:
            trusted = final_page.trusted(final_checkpoint.best) and page.trusted(checkpoint.best)
        before = checkpoint.best.before
        for log, (state, one) in zip((rows, finals), found, strict=True):
            best, words = one.best, state.words
            self._take(log, best.head, best.base, best.tail_start)
            if trusted:
                tail_start = max(words[TAIL_START], best.tail_start)
                self._take(log, words[COMMITTED], max(best.base, words[BASE]), tail_start)
        if trusted and page.words[BASE] > checkpoint.best.base:
            before = page.words[EPISODES_BEFORE]
        beyond = 0 if trusted else page.rows_beyond(checkpoint.best.head)
        if is_live:
            # Finals go once a durable checkpoint lets their rows go: it may be newer than this.
            newest = commit_records.read_checkpoint(self.path, self._uuid)
            rows.base = min(max(rows.base, newest.best.base if newest else 0), rows.head)
            self.unflushed = beyond
        else:
            self._check_crashed(rows, finals, found, trusted=trusted)
            self.untrusted = beyond
            if beyond:
                text = (
                    f"speaks of {beyond:,} rows after the last flush that are not trusted: it is "
                    f"from before a restart of the system, an fsync of them failed, or this is a "
                    f"copy, and the original has them"
                )
                self.notes.warn(".live/state", text)
        return before

    @property
    def _uuid(self) -> str:
        return str((self.documents.metadata or {})["uuid"])

    def _read_live(self, log: Log, capacity: int | None) -> tuple[State, CheckpointFile] | None:
        """What is in the `.live` of a log; None if it cannot be used, which is a finding."""
        live = log.path / ".live"
        try:
            checked_reads.check_directories(log.path, ".live")
            state = State(live / "state", writable=False)
            checkpoint = CheckpointFile(live / "checkpoint", self._uuid)
            check_rows(live, checkpoint.best.base, checkpoint.best.head, capacity)
            for spec in log.specs.values():
                if not spec.is_raw:
                    tail_file.map_tail(log.path, spec)
        except FileNotFoundError as error:
            name = str(error.filename).rpartition("/")[2]
            text = f"expected state, checkpoint and tails, as it was not closed; {name} is missing"
        except (MmreplayError, OSError) as error:
            text = reason(error, live).removeprefix(f"{live}/")
        else:
            return state, checkpoint
        self.notes.find(f"{log.prefix}.live", text)
        return None

    def _check_crashed(
        self,
        rows: Log,
        finals: Log,
        found: list[tuple[State, CheckpointFile]],
        *,
        trusted: bool,
    ) -> None:
        """What the state pages and checkpoints say of a lane that nobody writes now."""
        for log, (state, one) in zip((rows, finals), found, strict=True):
            texts = commit_records.page_problems(log.path, self._uuid)
            if trusted or one.best.tail_start <= one.best.head:
                tail_start = max(state.words[TAIL_START] if trusted else 0, one.best.tail_start)
                texts.append(tail_file.tail_problem(log.specs, log.head, tail_start))
            if log.base > log.head:
                texts.append(f"base: expected at most the head, {log.head:,}, found {log.base:,}")
                log.base = log.head
            for text in filter(None, texts):
                self.notes.find(f"{log.prefix}.live/state", text)
            if text := commit_records.checkpoint_problem(log.path, self._uuid):
                self.notes.find(f"{log.prefix}.live/checkpoint", text)
        path = generator_path(self.path)
        try:
            data = checked_reads.read_bytes(path, layout.MAX_METADATA_BYTES)
            texts = generator_problems(data)
        except FileNotFoundError:
            texts = []
        except (MmreplayError, OSError) as error:
            texts = [f"generator: {reason(error, path)}"]
        for text in texts:
            self.notes.find(".live/generator", text)

    def _bases(self, rows: Log, finals: Log) -> tuple[int, int]:
        """The oldest rows that both logs keep by now, if those of a live lane were evicted."""
        if self.state != "live":
            return rows.base, finals.base
        found = [commit_records.read_checkpoint(log.path, self._uuid) for log in (finals, rows)]
        bases = [0 if one is None else one.best.base for one in found]
        final_base, base = max(bases[0], finals.base), max(bases[1], rows.base)
        for log, oldest in ((rows, base), (finals, final_base)):
            arrays = {log.prefix + path for path in log.specs}
            self._drop(
                lambda one, arrays=arrays, oldest=oldest: (
                    one.array in arrays and one.rows is not None and one.rows[0] < oldest
                )
            )
        return base, final_base

    def _drop(self, is_gone: Callable[[Finding], bool]) -> None:
        self.findings[:] = [one for one in self.findings if not is_gone(one)]

    # ------------------------------------------------------------ what is checked

    def _check_arrays(self, rows: Log, finals: Log, rules: Rules) -> None:
        """Every chunk file, once, and the rules for what is in it."""
        done = {"step", "resets", "ends", f"{FINALS}/id", f"{FINALS}/first"}
        arrays = {log.prefix + path: (log, path) for log in (rows, finals) for path in log.specs}
        if done <= arrays.keys():
            rules.check_steps()
        else:
            done = set()
        for array, (log, path) in arrays.items():
            # Priorities of a live lane change all the time.
            if array not in done and not (path == PRIORITIES and self.state == "live"):
                rules.check_array(log, path)
        for array, (count, row) in rules.n_odd.items():
            text = f"NaN or infinity in {count:,} entries, the first of them in row {row:,}"
            self.notes.warn(array, f"{text}; stored as they came", array)

    def _check_numbers(self, rows: Log, finals: Log, before: int, first: int, rules: Rules) -> None:
        """What else zarr.json, or the checkpoint, says of the rows."""
        own = self.documents.metadata or {}
        file, capacity = "zarr.json" if rows.closed else ".live/checkpoint", own["capacity"]
        if finals.base and not rows.base:
            text = f"first_final: expected 0 as no step was evicted, found {finals.base:,}"
            self.notes.find(file, text)
        if before > rows.base * rows.n:
            text = f"episodes_before: expected at most {rows.base * rows.n:,}, found {before:,}"
            self.notes.find(file, text)
        if not rows.closed:
            return
        if capacity is None:
            if first:
                text = f"first: expected 0 where no capacity is set, found {first:,}"
                self.notes.find(file, text)
        elif not any(one.array in ("step", "resets", "ends") for one in self.findings):
            n_more = rules.n_kept + rules.n_before
            if rules.n_kept > capacity or (first > floor_row(rows.base) and n_more <= capacity):
                text = (
                    f"first: expected the oldest row from which on there are at most {capacity:,} "
                    f"transitions, found {first:,} with {rules.n_kept:,}"
                )
                self.notes.find(file, text)
            elif first and rules.n_before and n_more <= capacity:
                text = (
                    f"older rows were evicted, though {rules.n_kept:,} transitions are fewer than "
                    f"the capacity of {capacity:,}: was it raised since?"
                )
                self.notes.warn(file, text)

    def _check_names(self, rows: Log, finals: Log) -> None:
        """There is nothing else in the lane's directories."""
        known: dict[str, tuple[layout.ArraySpec, range] | None] = {}
        for log in (rows, finals):
            known |= dict.fromkeys(log.array_paths())
            if log is rows:
                known[layout.checksum_spec(PRIORITIES).path] = None
                if (self.path / PRIORITIES).exists():
                    known[PRIORITIES] = None
            for path, spec in log.specs.items():
                chunks = range(log.base // spec.chunk_rows, -(-log.head // spec.chunk_rows))
                known[log.prefix + path] = spec, chunks
                if (sums := log.sums.get(path)) is not None:
                    files = range(-(-chunks.stop // sums.chunk_rows))
                    known[log.prefix + sums.path] = sums, files
        for path, text, is_litter in names.foreign_in_lane(self.path, known, self.state):
            folder = path.rpartition("/")[0]
            array = folder if folder in known else ""
            if is_litter:
                self.notes.warn(path, text, array)
            else:
                self.notes.find(path, text, array)

    def _see_from_start(self, rows: Log) -> None:
        """By what was found of the columns; what else is damaged can be made again."""
        least = rows.base + (CONTEXT_ROWS if rows.base else 1)
        lost = any(not (self.path / path).exists() for path in rows.columns)
        self.from_start = lost or any(
            one.rows is not None and one.rows[0] < least and one.rows[1] > rows.base
            for one in self.findings
            if one.array in rows.columns and one.message not in {NO_CHECKSUM, WRONG_CHECKSUM}
        )
