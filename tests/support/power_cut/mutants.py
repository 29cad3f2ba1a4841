"""The protocol of docs/format.md with one of its rules left out: the simulator has to see each.

Invariant: every mutant breaks one sentence of "State of a live lane", "Order of writes" or "Reading"
there and changes nothing else, so that a simulator that finds nothing wrong with it would find
nothing wrong with the real code.

Four rules are kept for safety though others cover them: taken away alone from a model of the
protocol, none of them was missed in 40,000 histories.

- flush_cap: a flush takes the finals of the steps below its head only. Recovery drops the others.
- word_after: a reader takes the word of finals after that of the steps. If a final is missing, it
  looks again whether that word moved.
- look_evicted: a reader that misses a final looks whether its step was evicted. Those that may be
  sampled have 64 rows of context below them.
- `step` counts from 1. It is for readers that know nothing of mmreplay.

Rules that no single history of one lane can break, or hardly ever one, have no mutant here, but
tests of their own that go red without them:

- whose file a state page is, which boot the best slot is of, that the page is not trusted below
  that slot, the number of a session, and 0 after the last one: tests/unit/storage/test_state_page.py;
- of recovery that the steps are not trusted where the finals are not, and that a failed fsync of
  finals distrusts both; that tail_start and base are the greater ones, that files go last, that
  checksums go from row head - 1, and of shards from tail_start, that scalars past the head are
  zeroed: tests/unit/writing/test_order.py and test_sessions.py;
- that the checksums that recovery took away do not come back, and that a close is durable before
  the next writer removes anything: tests/crash/test_power_cut.py;
- the lock: test_misuse.py; errors of the disk: test_failing_calls.py;
- the random state: tests/unit/datasets/test_replay_buffer.py; priorities: tests/property/test_priorities.py.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from mmreplay.episode_index import Index
from mmreplay.episode_index.finals import LaneFinals
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.storage import checkpoint, priority_column, state_page
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.priority_column import PriorityColumn
from mmreplay.storage.state_page import BASE, COMMITTED, EPISODES_BEFORE, SESSION, TAIL_START, State
from mmreplay.system import checked_reads, durable_writes, held_directories, platform
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane, close, create, flush, recover
from mmreplay.writing.ends import Ends
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Log
from mmreplay.writing.seal import Sealer
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer
from tests.support.oracle.layout import Layout
from tests.support.power_cut import power
from tests.support.power_cut.layouts import ALL, LAYOUTS, LONG, MANY
from tests.support.power_cut.mutation import (
    Change,
    Mutant,
    after,
    before,
    breaking,
    changed,
    during,
    no_sync,
    not_durable,
    nothing,
    unless,
)

__all__ = ["MUTANTS"]

MUTANTS: dict[str, Mutant] = {}
_WITH_TAIL = [one for one in ALL if any(x.codec != "raw" for x in one.schema.frames.values())]
_RAW = [one for one in ALL if one not in _WITH_TAIL]
_EVICTING = [one for one in ALL if one.capacity is not None]
_WIDE = [one for one in LAYOUTS[64] if one.capacity is not None]
_WRITERS = (Writer, VectorWriter)


def _breaks(
    rule: str, layouts: Sequence[Layout] = ALL, noticed: str = "", *, others: bool | None = None
) -> Callable[[Callable[[], list[Change]]], Callable[[], list[Change]]]:
    return breaking(MUTANTS, rule, layouts, noticed, others=others)


def _simple(
    name: str,
    rule: str,
    changes: Callable[[], list[Change]],
    layouts: Sequence[Layout] = ALL,
    noticed: str = "",
    *,
    others: bool | None = None,
) -> None:
    """A mutant that is one line."""
    MUTANTS[name] = Mutant(rule, changes, layouts, others, noticed)


def _is_shard(path: Path, *_: Any, **__: Any) -> bool:
    return path.name.startswith("c.")


def _is_tail(path: AnyPath, *_: Any, **__: Any) -> bool:
    return path.name.endswith(".tail")


def _is_no_tail(path: AnyPath, *_: Any, **__: Any) -> bool:
    return not path.name.endswith(".tail")


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def _slots(change: Callable[[Any, dict[str, Any]], object]) -> list[Change]:
    """Checkpoints whose values a function changes that knows the log."""

    def remember(_: Any, lane: LockedLane, *__: Any) -> None:
        for log in lane.logs:
            log.checkpoint.log = log  # type: ignore[attr-defined]

    real = CheckpointFile.write

    def write(self: CheckpointFile, **changes: Any) -> None:
        log = getattr(self, "log", None)
        if log is not None:
            change(log, changes)
        real(self, **changes)

    return [after(LockedLane, "_open", remember), (CheckpointFile, "write", write)]


def _remembering(owner: Any, name: str, what: str, early: str) -> Change:
    """Before a function of a lane, an attribute of its logs is put into another one."""

    def remember(lane: LockedLane, *_: Any) -> None:
        for log in lane.logs:
            setattr(log, early, getattr(log, what))

    return before(owner, name, remember)


def _with_flushed(flushed: Callable[[Log, int], int]) -> list[Change]:
    """`_sync_rows` that takes more rows for flushed than were."""
    real = flush._sync_rows

    def sync_rows(log: Log, head: int) -> None:
        with changed([(log, "flushed", flushed(log, head))]):
            real(log, head)

    return [(flush, "_sync_rows", sync_rows)]


# ---------------------------------------------------------------- create

_simple(
    "create unsynced",
    "create: every file and directory fsynced before the rename",
    lambda: [during(create, "_make", (durable_writes, "sync_tree", nothing))],
)
_simple(
    "create with a name unsynced",
    "create: renamed, then the parent fsynced",
    lambda: [
        no_sync(durable_writes, "replace_directory", of="directories"),
        (durable_writes, "sync_name", nothing),  # which would make up for it
    ],
)
_simple(
    "opened with a name unsynced",
    "recover: fsync the directory above, whose entry a killed maker may have left unsynced",
    lambda: [(durable_writes, "sync_name", nothing)],
)


@_breaks("create: with a valid checkpoint")
def _create_without_a_checkpoint() -> list[Change]:
    def create(path: Path, *_: Any, **__: Any) -> None:
        durable_writes.write_file(path, bytes(2 * checkpoint.PAGE_BYTES))

    return [(CheckpointFile, "create", staticmethod(create))]


# ---------------------------------------------------------------- steps, and how episodes end


@_breaks("step: the row's values to their places, then committed")
def _commit_before_the_values() -> list[Change]:
    def commit(writer: Any, *_: Any, **__: Any) -> None:
        writer._prepare()
        writer._words[COMMITTED] = writer._head + 1

    return [before(one, "step", commit) for one in _WRITERS]


@_breaks("step: the word of the steps, then that of finals (rows_first)")
def _finals_committed_first() -> list[Change]:
    # Twice: a call may be interrupted before a store, and here it has to be after the first one.
    twice = lambda _, ends, *__: (ends.commit(), ends.commit())  # noqa: E731
    return [after(Ends, "add", twice)]


@_breaks("step: the pending row has final observations, too (pend_all)")
def _final_observations_not_pending() -> list[Change]:
    def blank(_: Any, ends: Any, ids: Any, *__: Any) -> None:
        row = int(ids[0]) // ends._n
        if row == ends._lane.rows.head:  # of a step, and not of a reset
            for path in ends._paths:
                ends._flat(path, row + 1)[ids % ends._n] = 0

    return [after(Ends, "add", blank)]


@_breaks("the newest step: an episode is over if it has a final (newest_by), for a writer")
def _newest_step_judged_by_ends_of_its_row() -> list[Change]:
    def ended(self: Any, row: int) -> Any:
        return self._rows.stored("ends", row).reshape(-1) != 0

    return [(Ends, "ended", ended)]


@_breaks("the newest step: an episode is over if it has a final (newest_by), for a reader")
def _newest_step_read_by_ends_of_its_row() -> list[Change]:
    real = Index._newest

    def newest(self: Index, ids: Any) -> Any:
        over, cut, pending = real(self, ids)
        return (self._ends.take(ids) != 0 if pending else over), cut, pending

    return [(Index, "_newest", newest)]


@_breaks("reading: a final is searched by its row (search)", MANY, "no final observation")
def _finals_searched_by_entry() -> list[Change]:
    def find(self: LaneFinals, entries: Any) -> Any:
        out = self.ids.searchsorted(entries)
        found = self.ids.take(out, mode="clip") == entries if self.ids.size else out < 0
        return np.where(found, out + self.base, -1)

    return [(LaneFinals, "find", find)]


_simple(
    "pending row used after a reset",
    "reading: repeat if the word of finals moved since the pending row was copied (recheck)",
    lambda: [(JoinedLanes, "is_settled", lambda *_: True)],
    noticed="next_observation",
)
_simple(
    "ended with a final that is not durable",
    "reset: finals durable if no step came since the last flush (reset_durable)",
    lambda: [during(Ends, "end_newest", (flush, "flush_finals", nothing))],
)


@_breaks("reset: the final is committed, and only then the pending frame changes (move_first)")
def _pending_frame_moved_late() -> list[Change]:
    def changing(writer_type: Any) -> Change:
        real = writer_type.reset

        def reset(self: Any, frames: Any, *mask: Any) -> None:
            head, kept = self._words[COMMITTED], {}
            if self._is_settled:
                given = frames if isinstance(frames, dict) else {"": frames}
                for key, path in self.schema.frame_paths.items():
                    rows = self._rows.stored(path, head)
                    kept[path] = np.array(rows)
                    which = mask[0] if mask and mask[0] is not None else ...
                    rows[which] = given[key if isinstance(frames, dict) else ""][which]

            def flat(ends: Any, path: str, row: int) -> Any:
                rows = kept.get(path, ends._rows.stored(path, row))
                return rows[None] if ends._lane.environments is None else rows

            with changed([(Ends, "_flat", flat)]):
                real(self, frames, *mask)

        return writer_type, "reset", reset

    return [changing(one) for one in _WRITERS]


@_breaks("step, reset: the next call tidies up what an interrupt has left (settle)", ALL, "")
def _interrupt_forgotten() -> list[Change]:
    def settle(self: Any) -> Any:
        head = self._lane.rows.head
        return self.ended(head - 1) if head else None

    return [(Ends, "settle", settle)]


def _keeping_ends(owner: Any, name: str) -> list[Change]:
    """A call that leaves `ends` of the newest row as they are."""
    real = Ends.__dict__[name]

    def call(self: Any, *args: Any) -> None:
        head = self._lane.rows.head
        kept = np.array(self._rows.stored("ends", head - 1)) if head else None
        real(self, *args)
        if head:
            self._rows.stored("ends", head - 1)[...] = kept

    return (
        [during(owner, "reset", (Ends, name, call))]
        if name == "end_newest"
        else [(Ends, name, call)]
    )


_simple(
    "episodes left running at an opening",
    "recover: `ends` of all episodes that had not ended",
    lambda: _keeping_ends(None, "end_running"),
    noticed="ends",
)
_simple(
    "episodes left running at a reset",
    "reset: `ends` of the running episodes that it ends",
    lambda: [one for writer in _WRITERS for one in _keeping_ends(writer, "end_newest")],
    noticed="ends",
)


@_breaks("step: what is left out is 0 in every column (zero_left_out)", MANY)
def _values_of_those_left_out_kept() -> list[Change]:
    real = VectorWriter._leave_out

    def leave_out(self: VectorWriter, t: int, absent: Any) -> int:
        with changed([(self, "_columns", ("step",))]):
            return real(self, t, absent)

    return [(VectorWriter, "_leave_out", leave_out)]


# ---------------------------------------------------------------- seal, checkpoint


def _shards_written_with(*skipped: Change) -> list[Change]:
    real = durable_writes.write_file

    def write_file(path: Path, data: bytes, **how: bool) -> None:
        with changed([*skipped] if _is_shard(path) else []):
            real(path, data, **how)

    return [(durable_writes, "write_file", write_file)]


_simple(
    "shard unsynced",
    "seal: fsync the shard before it gets its name",
    lambda: _shards_written_with(unless(_is_regular, durable_writes, "_fsync")),
    _WITH_TAIL,
)
_simple(
    "shard with a name unsynced",
    "seal: fsync the directory after the rename",
    lambda: _shards_written_with((durable_writes, "sync_directory", nothing)),
    _WITH_TAIL,
)


@_breaks("seal: a checkpoint slot, and only then may the half be used again", _WITH_TAIL)
def _half_given_back_without_a_checkpoint() -> list[Change]:
    real = CheckpointFile.write

    def write(self: CheckpointFile, **changes: Any) -> None:
        if changes.keys() != {"tail_start"}:
            real(self, **changes)

    return [(CheckpointFile, "write", write)]


_simple(
    "seal that writes the head",
    "seal: the slot copies the newest slot and changes only tail_start",
    lambda: _slots(lambda log, changes: changes.setdefault("head", log.head)),
    _WITH_TAIL,
)
_simple(
    "half used before it is sealed",
    "seal: then state.tail_start, and only then may the half be used again",
    lambda: [(Sealer, "wait", nothing)],
    _WITH_TAIL,
)
_simple(
    "slot unsynced",
    "checkpoint: fdatasync the slot",
    lambda: [no_sync(CheckpointFile, "write", of="files")],
)


@_breaks("checkpoint: a write always goes to the slot that is not the best one")
def _slot_over_the_best() -> list[Change]:
    def other(self: CheckpointFile, **_: Any) -> None:
        self._offset = checkpoint.PAGE_BYTES - self._offset

    return [before(CheckpointFile, "write", other)]


# ---------------------------------------------------------------- flush, evict

_simple(
    "tail unsynced",
    "flush: fdatasync the tail",
    lambda: [during(flush, "_sync_rows", unless(_is_tail, durable_writes, "sync_file"))],
    _WITH_TAIL,
)
_simple(
    "chunks unsynced",
    "flush: fdatasync the chunk files",
    lambda: [during(flush, "_sync_rows", unless(_is_no_tail, durable_writes, "sync_file"))],
)
_simple(
    "newest chunks only",
    "flush: every chunk file written since, filled ones too",
    lambda: _with_flushed(lambda _, head: head),
)
_simple(
    "newest row of the last flush forgotten",
    "flush: from row (last flush - 1) on, since `ends` of that row may have changed",
    lambda: _with_flushed(lambda log, _: log.flushed + 1),
)
_simple(
    "pending row unsynced",
    "flush: with the pending row (pending_stored)",
    lambda: [during(flush, "_sync_rows", (Log, "beyond", lambda *_: 0))],
    _RAW,
)
_simple(
    "names unsynced",
    "flush: fsync the directories",
    lambda: [during(flush, "flush_rows", (durable_writes, "sync_directory", nothing))],
)


@_breaks("flush: take the sets of files and directories written since the last flush, then sync")
def _names_made_meanwhile_forgotten() -> list[Change]:
    def forget(_: Any, lane: LockedLane) -> None:
        for log in lane.logs:
            log.fresh.clear()

    return [after(flush, "flush_rows", forget)]


@_breaks("flush: read committed before anything is synced")
def _head_read_late() -> list[Change]:
    def change(log: Log, changes: dict[str, Any]) -> None:
        if "head" in changes:
            changes["head"] = log.head

    return _slots(change)


_simple(
    "steps counted though their finals are not committed",
    "flush: the head of the last step that is finished (flush_done)",
    lambda: [(LockedLane, "finished", lambda lane: lane.rows.head)],
)


def _flushing(flush_rows: Callable[[LockedLane], None]) -> list[Change]:
    return [(flush, "flush_rows", flush_rows)]


@_breaks("flush: the finals, then the steps")
def _steps_flushed_first() -> list[Change]:
    def flush_rows(lane: LockedLane) -> None:
        head = lane.promised = lane.finished()
        flush._flush_steps(lane, head)
        flush._flush_finals(lane, head)

    return _flushing(flush_rows)


@_breaks("flush: the steps up to the head that was read before the finals were synced")
def _steps_counted_after_the_finals() -> list[Change]:
    def flush_rows(lane: LockedLane) -> None:
        flush._flush_finals(lane, lane.finished())
        head = lane.promised = lane.finished()
        flush._flush_steps(lane, head)

    return _flushing(flush_rows)


@_breaks("flush: read tail_start after the rows are synced", _WITH_TAIL)
def _tail_start_read_early() -> list[Change]:
    def change(log: Any, changes: dict[str, Any]) -> None:
        if "head" in changes and hasattr(log, "early"):
            changes["tail_start"] = log.early

    return [_remembering(flush, "flush_rows", "tail_start", "early"), *_slots(change)]


_simple(
    "flush that leaves out the base",
    "flush: write the other slot, with the base that the capacity asks for",
    lambda: _slots(lambda _, changes: changes.pop("base", None)),
    _EVICTING,
)
_simple(
    "flush that leaves out how many episodes went",
    "flush: the number of episodes below base goes with it",
    lambda: _slots(lambda _, changes: changes.pop("before", None)),
    _EVICTING,
    "episodes before",
)


@_breaks("flush: write the other slot after the rows are synced")
def _checkpoint_before_the_rows() -> list[Change]:
    real = flush.flush_rows, flush._sync_rows

    def flush_rows(lane: LockedLane) -> None:
        with changed([(flush, "_sync_rows", nothing)]):
            real[0](lane)
        for log in lane.logs:
            real[1](log, log.head)

    return _flushing(flush_rows)


@_breaks("evict: finals below the base of the steps' durable checkpoint (evict_after)", _EVICTING)
def _finals_evicted_with_their_steps() -> list[Change]:
    real = flush._flush_finals

    def flush_finals(lane: LockedLane, head: int) -> None:
        rows = lane.rows
        base = flush._base_of(lane, lane.retention.first_row(head))
        best = dataclasses.replace(rows.checkpoint.best, base=base)

        class Ahead:
            checkpoint = SimpleNamespace(best=best)

            def __getattr__(self, name: str) -> Any:
                return getattr(rows, name)

        with changed([(lane, "rows", Ahead())]):
            real(lane, head)

    return [(flush, "_flush_finals", flush_finals)]


@_breaks("evict: files below the base of the last checkpointed state", _EVICTING)
def _evict_before_the_checkpoint() -> list[Change]:
    def evict(lane: LockedLane) -> None:
        log = lane.rows
        base = flush._base_of(lane, lane.retention.first_row(lane.finished()))
        log.before += lane.retention.episodes_in(log.base, base) if base > log.base else 0
        log.state.words[EPISODES_BEFORE] = log.before
        log.state.words[BASE] = log.base = base
        flush.evict(log)

    return [before(flush, "flush_rows", evict)]


@_breaks("evict: after state.base was stored", _EVICTING)
def _evict_before_the_base_is_stored() -> list[Change]:
    real = flush.evict

    def evict(log: Any) -> None:
        words = log.state.words
        base, words[BASE] = words[BASE], getattr(log, "early", words[BASE])
        real(log)
        words[BASE] = base

    return [_remembering(flush, "flush_rows", "base", "early"), (flush, "evict", evict)]


_simple(
    "context evicted",
    "base: 64 rows below the oldest that may be sampled, as context for stacks",
    lambda: [(flush, "_base_of", lambda lane, first: max(lane.rows.base, first))],
    _EVICTING,
)


# ---------------------------------------------------------------- close


@_breaks("close: everything durable, then closed = true")
def _closed_too_early() -> list[Change]:
    def say_closed(_: Any, lane: LockedLane) -> None:
        rows, finals = lane.logs
        build_lane.write_metadata(
            lane.path,
            lane.metadata,
            rows=rows.head,
            first=rows.first,
            finals=finals.head,
            first_final=finals.base,
            episodes_before=rows.before,
            closed=True,
        )

    return [during(close, "_close", after(flush, "flush_rows", say_closed))]


@_breaks("close: closed = true, then remove .live")
def _live_removed_too_early() -> list[Change]:
    def remove(path: Path, metadata: dict[str, Any], *_: Any, **changes: Any) -> None:
        if {**metadata, **changes}.get("closed"):
            for log in (path, path / "finals"):
                durable_writes.remove_tree(log / ".live")

    return [before(build_lane, "write_metadata", remove)]


_simple(
    "root unsynced",
    "close: the root zarr.json beside, fsync, rename",
    lambda: [during(build_lane, "write_metadata", unless(_is_regular, durable_writes, "_fsync"))],
)
_simple(
    "root with a name unsynced",
    "close: the root zarr.json renamed, fsync the directory, then remove .live",
    lambda: [during(build_lane, "write_metadata", (durable_writes, "sync_directory", nothing))],
)
_simple(
    "unused rows kept",
    "close: the unused end of the last chunk file is zeros, the pending row too",
    lambda: [(close, "_zero_unused", nothing)],
)
_simple(
    "zeros unsynced",
    "close: zeros past the last row, durable before closed = true",
    lambda: [during(durable_writes, "zero_ranges", (durable_writes, "_fdatasync", nothing))],
    LONG,
)
_simple(
    "checksums of a close unsynced",
    "close: the missing checksums, durable before closed = true",
    lambda: [during(close, "_finish_checksums", (Checksums, "sync", nothing))],
)
_simple(
    "shapes unsynced",
    "close: the shapes of all arrays, durable before closed = true",
    lambda: [not_durable(close, "_write_shapes")],
)
_simple(
    "shards of a closed lane unsynced",
    "close: seal the tail into a last, short shard",
    lambda: [during(close, "_seal_here", unless(_is_regular, durable_writes, "_fsync"))],
    _WITH_TAIL,
)


# ---------------------------------------------------------------- open a closed lane


@_breaks("reopen: a .live beside closed = true is litter, deleted first")
def _litter_reused() -> list[Change]:
    real = recover.reopen

    def reopen(document: Any, rows: Log, finals: Log, changes: Any) -> Any:
        if not (rows.live / "state").exists() or not (finals.live / "state").exists():
            return real(document, rows, finals, changes)
        build_lane.write_metadata(document.path, document.metadata, closed=False)
        metadata, found = recover.recover(document, rows, finals, changes)
        for log in (finals, rows):
            recover.begin(log, trusted=found.trusted[log])
        return {**metadata, "closed": False}

    return [(recover, "reopen", reopen)]


_simple(
    "new live unsynced",
    "reopen: fsync files and directories of .live before closed = false",
    lambda: [during(recover, "reopen", (durable_writes, "sync_tree", nothing))],
)
_simple(
    "pending chunk file unsynced",
    "reopen: the chunk file of the pending row durable before closed = false",
    lambda: [during(recover, "_rebuild_live", (durable_writes, "sync_all", nothing))],
    _RAW,
)


@_breaks("reopen: closed = false durably, and only then touch a chunk file")
def _still_closed() -> list[Change]:
    def keep(_: Path, metadata: dict[str, Any], *__: Any, **changes: Any) -> dict[str, Any]:
        return {**metadata, **changes}

    return [during(recover, "reopen", (build_lane, "write_metadata", keep))]


@_breaks("reopen: a fresh tail, state and checkpoint, then closed = false")
def _opened_too_early() -> list[Change]:
    def open_(document: Any, *_: Any) -> None:
        build_lane.write_metadata(document.path, document.metadata, closed=False)

    return [before(recover, "reopen", open_)]


@_breaks("reopen: closed = false, and only then zero the checksums")
def _checksums_forgotten_too_early() -> list[Change]:
    real = recover.reopen

    def reopen(document: Any, rows: Log, finals: Log, changes: Any) -> Any:
        def forget(*_: Any, **__: Any) -> None:
            for log, name in ((rows, "rows"), (finals, "finals")):
                head = document.metadata[name]
                log.sums.forget(head, log.shard_start(head))
                log.sums.sync()

        with changed([before(build_lane, "write_metadata", forget)]):
            return real(document, rows, finals, changes)

    return [(recover, "reopen", reopen)]


_simple(
    "short shard not unpacked",
    "reopen: unpack the last, short shard into a fresh tail",
    lambda: [during(recover, "reopen", (recover, "_unpack", nothing))],
    _WITH_TAIL,
)
_simple(
    "checksums kept",
    "reopen, recover: zero the checksums of chunks that change again",
    lambda: [(Checksums, "forget", nothing)],
)


# ---------------------------------------------------------------- recover

_simple(
    "nothing synced first",
    "recover: first fsync what a killed process may have left in the page cache only",
    lambda: [
        during(
            recover,
            "recover",
            *(
                (durable_writes, name, nothing)
                for name in ("sync_file", "sync_tree", "sync_directory")
            ),
        )
    ],
)


@_breaks("recover: take every kept chunk file as dirty")
def _dirty_chunks_forgotten() -> list[Change]:
    def forget(_: Any, __: Any, *logs: Any) -> None:
        for log in logs[:2]:
            log.flushed = log.head

    return [after(recover, "recover", forget)]


_simple(
    "state trusted after a reboot",
    "recover: the state is trusted only if its boot id is the current one",
    lambda: [(State, "trusted", lambda self, best: self.words[COMMITTED] >= best.head)],
)
_simple(
    "state never trusted",
    "recover: a state of this boot and file is trusted, and not the checkpoint",
    lambda: [(State, "trusted", lambda *_: False)],
)


@_breaks("state: stored last, the boot id")
def _boot_id_stored_first() -> list[Change]:
    def start(self: State, *, base: int, tail_start: int, committed: int, before: int) -> None:
        words = self.words
        self.name_files()
        boot = struct.unpack("<QQ", platform.boot_id())
        words[state_page._BOOT], words[state_page._BOOT + 1] = boot
        words[0] = state_page._MAGIC
        words[BASE], words[TAIL_START], words[COMMITTED] = base, tail_start, committed
        words[EPISODES_BEFORE] = before
        words[SESSION] = 1

    return [(State, "start", start)]


_simple(
    "tail not rebuilt",
    "recover: if tail_start > head, unpack that shard into the tail",
    lambda: [during(recover, "recover", (recover, "_unpack", nothing))],
    _WITH_TAIL,
)


@_breaks("recover: unpack the pending row, too (pending_stored)", _WITH_TAIL)
def _pending_row_not_rebuilt() -> list[Change]:
    real = recover._unpack

    def unpack(log: Log, start: int, stop: int) -> None:
        real(log, start, stop - log.pending)

    return [during(recover, "_go_back", (recover, "_unpack", unpack))]


_simple(
    "pending row swept",
    "recover: the chunk file of the pending row is none past the head (pending_stored)",
    lambda: [during(recover, "_sweep", (Log, "beyond", lambda *_: 0))],
    _RAW,
)
_simple(
    "rebuilt tail unsynced",
    "recover: fdatasync the rebuilt tail, then checkpoint",
    lambda: [during(recover, "recover", unless(_is_tail, durable_writes, "sync_file"))],
    _WITH_TAIL,
)
_simple(
    "no checkpoint after recovery",
    "recover: checkpoint",
    lambda: [during(recover, "recover", (CheckpointFile, "write", nothing))],
)


@_breaks("recover: a checkpoint of the tail_start that was rounded down", _WITH_TAIL)
def _checkpoint_of_a_tail_that_is_gone() -> list[Change]:
    real = CheckpointFile.write

    def write(self: CheckpointFile, *, tail_start: int, **changes: int) -> None:
        del tail_start  # that of the slot before is copied
        real(self, **changes)

    return [during(recover, "recover", (CheckpointFile, "write", write))]


_simple(
    "finals of lost steps kept",
    "recover: drop the finals of steps that are lost (drop)",
    lambda: [(recover, "_drop_finals", nothing)],
)
_simple(
    "finals dropped without a checkpoint",
    "recover: checkpoint, then the word, and only then are their places used again (lower_first)",
    lambda: [during(recover, "_drop_finals", (recover, "_write_checkpoint", nothing))],
)
_simple(
    "finals of a recovery not durable",
    "recover: finals are durable before a session begins (recover_durable)",
    lambda: [during(Ends, "end_running", (flush, "flush_finals", nothing))],
)


@_breaks("recover: the word of added finals, then the checkpoint (word_first)")
def _checkpoint_of_finals_before_their_word() -> list[Change]:
    def early(ends: Any) -> None:
        log = ends._lane.finals
        flush._sync_rows(log, ends._head)
        log.checkpoint.write(head=ends._head)

    return [during(Ends, "end_running", before(Ends, "commit", early))]


_simple("litter kept", "recover: delete *.tmp", lambda: [(recover, "_remove_litter", nothing)])
_simple(
    "old chunks kept",
    "recover: delete shards and chunk files past head and wholly below base",
    lambda: [(recover, "_sweep", nothing)],
)


# ---------------------------------------------------------------- paths, links, copies


@_breaks("lock: a writer looks files up from the directory that it has locked", others=True)
def _paths_looked_up_by_name() -> list[Change]:
    def at(path: AnyPath) -> tuple[str, None]:
        return str(path), None

    return [(owner, "at", at) for owner in (held_directories, checked_reads, durable_writes, power)]


_simple(
    "shared files written",
    "a file of several names is replaced by a copy before it is written in place",
    lambda: [(durable_writes, "make_own", nothing)],
    others=True,
)
_simple(
    "shared state page written",
    "recover: a state page of several names is replaced by a copy",
    lambda: [(State, "make_own", staticmethod(nothing))],
    others=True,
)
_simple(
    "shared tail used again",
    "seal: a tail of several names is replaced before its half is used again",
    lambda: [(Sealer, "_replace_tails", nothing)],
    _WITH_TAIL,
    others=True,
)


@_breaks("state: trusted only in the directory that it names", others=True)
def _state_trusted_in_a_copy() -> list[Change]:
    real = State.is_of_this_boot

    def is_of_this_boot(self: State) -> bool:
        home = self.words[state_page._HOME_DEVICE], self.words[state_page._HOME_INODE]
        with mock.patch.object(self, "_home", home):
            return real(self)

    return [(State, "is_of_this_boot", is_of_this_boot)]


_simple(
    "state trusted though truncated",
    "state: trusted only with the blocks beyond its end that it had",
    lambda: [(state_page, "_blocks", lambda _: 1 << 40)],
    others=True,
)


# ---------------------------------------------------------------- priorities

_simple(
    "priorities of evicted rows kept",
    "priorities: chunk files go with those of the rows",
    lambda: [(priority_column, "evict", nothing)],
    _WIDE,
    "priorities: chunk",
    others=False,
)
_simple(
    "priorities of lost rows kept",
    "priorities: zero past the head after an opening",
    lambda: [(priority_column, "_clear", nothing)],
    noticed="past the head",
    others=False,
)
_simple(
    "priorities unsynced",
    "flush: priorities durably",
    lambda: [(PriorityColumn, "sync", nothing)],
    noticed="priority of",
    others=False,
)


@_breaks("priorities: the newest row may have some", ALL, "priority of", others=False)
def _priorities_of_the_newest_row_zeroed() -> list[Change]:
    real = priority_column._clear

    def clear(lane: AnyPath, spec: Any, stop: int) -> None:
        real(lane, spec, max(stop - 1, 0))

    return [(priority_column, "_clear", clear)]
