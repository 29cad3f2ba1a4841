"""One lane: compares its contents with its own zarr.json.

Invariant: all findings are about one state of the lane; if it was opened or closed meanwhile, it is
examined again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from mmreplay.episode_index import floor_row
from mmreplay.errors import LockedError, MmreplayError
from mmreplay.format import layout
from mmreplay.format.layout import CONTEXT_ROWS, FINALS
from mmreplay.maintenance import commit_records
from mmreplay.maintenance.byte_count import ByteCount
from mmreplay.maintenance.verify import names
from mmreplay.maintenance.verify.chunks import NO_CHECKSUM, WRONG_CHECKSUM, ChunkReader
from mmreplay.maintenance.verify.documents import PRIORITIES, Documents, Log, generator_problem
from mmreplay.maintenance.verify.report import Notes, reason
from mmreplay.maintenance.verify.rules import SPINE, Rules
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.state_page import SESSION
from mmreplay.system import checked_reads, locks
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.build_lane import generator_path

__all__ = ["Examination", "examine"]

_ATTEMPTS = 100
_PATIENCE_S = 0.05


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
    if (state := commit_records.read_state(path)) is not None:
        session = state.words[SESSION]
    return stamp, session, locks.is_locked(path)


class Examination:
    """One lane, examined once; attributes as of `Report`, for this lane."""

    def __init__(self, root: AnyPath, path: AnyPath, tally: ByteCount) -> None:
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
        if self.documents.logs is None:
            return  # which is a finding already
        (rows, finals), own = self.documents.logs, self.documents.metadata
        self.environments = rows.n
        if own["closed"]:
            self.state = "closed"
            rows.take(max(own["first"] - CONTEXT_ROWS, 0), own["rows"])
            finals.take(own["first_final"], own["finals"])
        elif not self._open(rows, finals, str(own["uuid"])):
            return
        self.n_rows = rows.head - rows.base
        rules = Rules(rows, finals, ChunkReader(self.notes, self._tally, self.state), own["first"])
        self._check_arrays(rows, finals, rules)
        rules.note(self.notes)
        if self.state == "live":
            self._forget_evicted(rows, finals, str(own["uuid"]))
        if rows.closed:
            self._check_numbers(own, rows, finals, rules)
        self._check_names(rows, finals)
        self._see_from_start(rows)

    # ------------------------------------------------------------ which rows there are

    def _open(self, rows: Log, finals: Log, uuid: str) -> bool:
        """Choose the rows of a lane that is not closed; False if there are none to examine.

        Of a live lane the durable ones, of a crashed one those that the next writer keeps.
        """
        try:
            reader = LaneReader(self.path, own_documents=True)
        except (MmreplayError, OSError) as error:
            text = reason(error, self.path)
            folder = f"{FINALS}/.live" if text.startswith(f"{self.path}/{FINALS}") else ".live"
            self.notes.find(folder, reason(error, self.path, self.path / folder))
            return False
        if not locks.is_locked(self.path):
            self.state = "crashed"
            for log, one in ((rows, reader.rows), (finals, reader.finals)):
                log.take(one.base, one.head, one.tail_start())
            self._check_private(rows, finals, uuid, reader.rows.untrusted)
            return True
        self.state = "live"
        # In this order: a flush writes the checkpoint of the finals first, and finals go once that
        # of the rows lets their rows go.
        first, of_finals, newest = (
            commit_records.read_checkpoint(log.path, uuid) for log in (rows, finals, rows)
        )
        if first is None or of_finals is None or newest is None:
            self.notes.find(".live", "expected a checkpoint, found none")
            return False
        rows.take(min(newest.best.base, first.best.head), first.best.head, first.best.tail_start)
        finals.take(of_finals.best.base, of_finals.best.head, of_finals.best.tail_start)
        self.unflushed = max(reader.head - rows.head, 0) + reader.rows.untrusted
        return True

    def _check_private(self, rows: Log, finals: Log, uuid: str, untrusted: int) -> None:
        """Check the `.live` of a crashed lane."""
        for log in (rows, finals):
            for text in commit_records.page_problems(log.path, uuid):
                self.notes.find(f"{log.prefix}.live/state", text)
            if text := commit_records.checkpoint_problem(log.path, uuid):
                self.notes.find(f"{log.prefix}.live/checkpoint", text)
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
            text = generator_problem(checked_reads.read_bytes(path, layout.MAX_METADATA_BYTES))
        except FileNotFoundError:
            pass
        except (MmreplayError, OSError) as error:
            text = f"generator: {reason(error, path)}"
        if text:
            self.notes.find(".live/generator", text)

    def _forget_evicted(self, rows: Log, finals: Log, uuid: str) -> None:
        """Drop findings about rows that were evicted meanwhile."""
        found = [commit_records.read_checkpoint(log.path, uuid) for log in (rows, finals)]
        base, final_base = (0 if one is None else one.best.base for one in found)
        self.findings[:] = [
            one
            for one in self.findings
            if one.rows is None
            or one.rows[0] >= (final_base if one.array.startswith(finals.prefix) else base)
        ]

    # ------------------------------------------------------------ what is checked

    def _check_arrays(self, rows: Log, finals: Log, rules: Rules) -> None:
        """Check each chunk file once, and the rules for its rows."""
        for log in (rows, finals):
            for path in log.specs:
                # Priorities of a live lane change all the time.
                if path != PRIORITIES or self.state != "live":
                    rules.check_array(log, path)
        try:
            rules.check_steps()
        except (MmreplayError, OSError) as error:
            if self.state != "live":  # else they were evicted
                self.notes.find("", reason(error, self.path))
        for array, (count, row) in rules.n_odd.items():
            text = f"NaN or infinity in {count:,} entries, the first of them in row {row:,}"
            self.notes.warn(array, f"{text}; stored as they came", array)

    def _check_numbers(self, own: Mapping[str, Any], rows: Log, finals: Log, rules: Rules) -> None:
        """Check the other numbers in the zarr.json of a closed lane."""
        first, capacity, before = own["first"], own["capacity"], own["episodes_before"]
        n_kept, texts = rules.n_kept, list[str]()
        if finals.base and not rows.base:
            texts.append(f"first_final: expected 0 as no step was evicted, found {finals.base:,}")
        if before > rows.base * rows.n:
            texts.append(f"episodes_before: expected at most {rows.base * rows.n}, found {before}")
        if capacity is None and first:
            texts.append(f"first: expected 0 where no capacity is set, found {first:,}")
        elif (
            capacity is not None
            and n_kept is not None
            and SPINE.isdisjoint(one.array for one in self.findings)
            and (
                n_kept > capacity
                or (first > floor_row(rows.base) and n_kept + rules.n_before <= capacity)
            )
        ):
            texts.append(
                f"first: expected the oldest row from which on there are at most {capacity:,} "
                f"transitions, found {first:,} with {n_kept:,}"
            )
        for text in texts:
            self.notes.find("zarr.json", text)

    def _check_names(self, rows: Log, finals: Log) -> None:
        """Look for files that do not belong to the lane."""
        known: dict[str, tuple[layout.ArraySpec, range] | None] = {}
        known[layout.checksum_spec(PRIORITIES).path] = None
        if (self.path / PRIORITIES).exists():
            known[PRIORITIES] = None
        for log in (rows, finals):
            for path, spec in log.specs.items():
                chunks = range(log.base // spec.chunk_rows, -(-log.head // spec.chunk_rows))
                known[log.prefix + path] = spec, chunks
                if (sums := log.sums.get(path)) is not None:
                    files = range(-(-chunks.stop // sums.chunk_rows))
                    known[log.prefix + sums.path] = sums, files
        for path, text, is_litter in names.foreign_in_lane(self.path, known, self.state):
            folder = path.rpartition("/")[0]
            note = self.notes.warn if is_litter else self.notes.find
            note(path, text, folder if folder in known else "")

    def _see_from_start(self, rows: Log) -> None:
        """By the findings about columns; everything else can be rebuilt."""
        least = rows.base + (CONTEXT_ROWS if rows.base else 1)
        self.from_start = any(
            one.rows is not None and one.rows[0] < least
            for one in self.findings
            if one.array in rows.specs.keys() - {PRIORITIES}
            and one.message not in {NO_CHECKSUM, WRONG_CHECKSUM}
        )
