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
- the lock: tests/unit/writing/test_sessions.py; errors of the disk: test_failing_calls.py;
- the random state: tests/unit/datasets/test_replay_buffer.py; priorities: tests/property/test_priorities.py.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from mmreplay.episode_index import Index
from mmreplay.episode_index.finals import LaneFinals
from mmreplay.reading.joined_lanes import JoinedLanes
from mmreplay.storage import chunk_files, state_page
from mmreplay.storage.changing_column import ChangingColumn
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.state_page import BASE, COMMITTED, EPISODES_BEFORE, CheckpointFile, State
from mmreplay.system import checked_reads, durable_writes, held_directories
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane, close, create, flush, recover
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.lane_writer import Ends, LaneWriter
from mmreplay.writing.log import Log
from mmreplay.writing.seal import Sealer
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer
from tests.support.power_cut import power
from tests.support.power_cut.layouts import ALL, CHANGING, LAYOUTS, LONG, MANY
from tests.support.power_cut.mutation import (
    Change,
    Mutant,
    after,
    before,
    caught,
    changed,
    during,
    instead,
    no_sync,
    not_durable,
    nothing,
    unless,
)

_WRITERS = (Writer, VectorWriter)


def caught_by_name(name: str, seeds: Sequence[int], n_crashes: int) -> tuple[int, str] | None:
    """As `caught`, with its own histories first; for another process, which gets no function."""
    mutant = MUTANTS[name]
    return caught(mutant, [*mutant.seeds, *seeds], n_crashes)


_LAYOUTS = {
    "all": ALL,
    "tail": [one for one in ALL if any(x.codec != "raw" for x in one.schema.frames.values())],
    "raw": [one for one in ALL if all(x.codec == "raw" for x in one.schema.frames.values())],
    "evicting": [one for one in ALL if one.capacity is not None],
    "wide": [one for one in LAYOUTS[64] if one.capacity is not None],
    "long": LONG,
    "many": MANY,
    "changing": CHANGING,
}

# a history that notices it soon | name | layouts | the rule that is broken | what the simulator says
# | whether others are at work. A change of the code may change what happens in a history: without
# that column a mutant is only found later.
_TABLE = """
5171 | create unsynced | all | create: every file and directory fsynced before the rename
5171 | create with a name unsynced | all | create: renamed, then the parent fsynced
5368 | opened with a name unsynced | all | recover: fsync the directory above, whose entry a killed maker may have left unsynced
5184 | commit before the values | all | step: the row's values to their places, then committed
5218 | finals committed first | all | step: the word of the steps, then that of finals (rows_first)
5172 | final observations not pending | all | step: the pending row has final observations, too (pend_all)
5171 | newest step judged by ends of its row | all | the newest step: an episode is over if it has a final (newest_by), for a writer
5172 | newest step read by ends of its row | all | the newest step: an episode is over if it has a final (newest_by), for a reader
5173 | finals searched by entry | many | reading: a final is searched by its row (search) | no final observation
5172 | pending row used after a reset | all | reading: repeat if the word of finals moved since the pending row was copied (recheck) | next_observation
5178 | ended with a final that is not durable | all | reset: finals durable if no step came since the last flush (reset_durable)
5178 | interrupt forgotten | all | step, reset: the next call tidies up what an interrupt has left (settle)
5171 | episodes left running at an opening | all | recover: `ends` of all episodes that had not ended | ends
5172 | episodes left running at a reset | all | reset: `ends` of the running episodes that it ends | ends
5170 | values of those left out kept | many | step: what is left out is 0 in every column (zero_left_out)
5172 | shard unsynced | tail | seal: fsync the shard before it gets its name
5173 | shard with a name unsynced | tail | seal: fsync the directory after the rename
5173 | half given back without a checkpoint | tail | seal: a checkpoint slot, and only then may the half be used again
5175 | seal that writes the head | tail | seal: the slot copies the newest slot and changes only tail_start
5173 | half used before it is sealed | tail | seal: then state.tail_start, and only then may the half be used again
5175 | slot unsynced | all | checkpoint: fdatasync the slot
5177 | slot over the best | all | checkpoint: a write always goes to the slot that is not the best one
5171 | tail unsynced | tail | flush: fdatasync the tail
5170 | chunks unsynced | all | flush: fdatasync the chunk files
5173 | newest chunks only | all | flush: every chunk file written since, filled ones too
5247 | newest row of the last flush forgotten | all | flush: from row (last flush - 1) on, since `ends` of that row may have changed
5170 | pending row unsynced | raw | flush: with the pending row (pending_stored)
5175 | names unsynced | all | flush: fsync the directories
5202 | names made meanwhile forgotten | all | flush: take the sets of files and directories written since the last flush, then sync
5178 | head read late | all | flush: read committed before anything is synced
5292 | steps counted though their finals are not committed | all | flush: the head of the last step that is finished (flush_done) | rows:|frames|observation|finals
5173 | steps flushed first | all | flush: the finals, then the steps
5173 | flush that leaves out the base | evicting | flush: write the other slot, with the base that the capacity asks for
5173 | flush that leaves out how many episodes went | evicting | flush: the number of episodes below base goes with it | episodes before
5172 | checkpoint before the rows | all | flush: write the other slot after the rows are synced
5173 | evict before the checkpoint | evicting | evict: files below the base of the last checkpointed state
5173 | context evicted | evicting | base: 64 rows below the oldest that may be sampled, as context for stacks
5172 | live removed too early | all | close: closed = true, then remove .live
5172 | root unsynced | all | close: the root zarr.json beside, fsync, rename
5182 | root with a name unsynced | all | close: the root zarr.json renamed, fsync the directory, then remove .live
5171 | unused rows kept | all | close: the unused end of the last chunk file is zeros, the pending row too
5171 | zeros unsynced | long | close: zeros past the last row, durable before closed = true
5171 | checksums of a close unsynced | all | close: the missing checksums, durable before closed = true
5171 | shapes unsynced | all | close: the shapes of all arrays, durable before closed = true
5172 | shards of a closed lane unsynced | tail | close: seal the tail into a last, short shard
5172 | new live unsynced | all | reopen: fsync files and directories of .live before closed = false
5170 | pending chunk file unsynced | raw | reopen: the chunk file of the pending row durable before closed = false
5171 | still closed | all | reopen: closed = false durably, and only then touch a chunk file
5173 | opened too early | all | reopen: a fresh tail, state and checkpoint, then closed = false
5175 | short shard not unpacked | tail | reopen: unpack the last, short shard into a fresh tail
5189 | checksums kept | all | reopen, recover: zero the checksums of chunks that change again
5176 | nothing synced first | all | recover: first fsync what a killed process may have left in the page cache only
5247 | dirty chunks forgotten | all | recover: take every kept chunk file as dirty
5173 | state trusted after a reboot | all | recover: the state is trusted only if its boot id is the current one
5172 | state never trusted | all | recover: a state of this boot and file is trusted, and not the checkpoint
5172 | tail not rebuilt | tail | recover: if tail_start > head, unpack that shard into the tail
5176 | pending row not rebuilt | tail | recover: unpack the pending row, too (pending_stored)
5173 | pending row swept | raw | recover: the chunk file of the pending row is none past the head (pending_stored)
5181 | rebuilt tail unsynced | tail | recover: fdatasync the rebuilt tail, then checkpoint
5170 | no checkpoint after recovery | all | recover: checkpoint
5175 | checkpoint of a tail that is gone | tail | recover: a checkpoint of the tail_start that was rounded down
5172 | finals of lost steps kept | all | recover: drop the finals of steps that are lost (drop)
5173 | finals dropped without a checkpoint | all | recover: checkpoint, then the word, and only then are their places used again (lower_first)
5173 | finals of a recovery not durable | all | recover: finals are durable before a session begins (recover_durable) | rows:|frames|observation|finals
5174 | litter kept | all | recover: delete *.tmp
5178 | old chunks kept | all | recover: delete shards and chunk files past head and wholly below base
5170 | paths looked up by name | all | lock: a writer looks files up from the directory that it has locked |  | others
5170 | shared files written | all | a file of several names is replaced by a copy before it is written in place |  | others
5381 | shared state page written | all | recover: a state page of several names is replaced by a copy |  | others
5183 | shared tail used again | tail | seal: a tail of several names is replaced before its half is used again |  | others
5218 | state trusted in a copy | all | state: trusted only in the directory that it names |  | others
5192 | state trusted though truncated | all | state: trusted only with the blocks beyond its end that it had |  | others
5209 | priorities of evicted rows kept | wide | priorities: chunk files go with those of the rows | priorities: chunk | alone
5184 | priorities of lost rows kept | all | priorities: zero past the head after an opening | past the head | alone
5184 | priorities unsynced | all | flush: priorities durably | priority of | alone
5198 | priorities of the newest row zeroed | all | priorities: the newest row may have some | priority of | alone
5173 | derived values of lost rows kept | changing | recover: derived columns, zero past the head, durably | derived | alone
5171 | derived values unsynced | changing | flush: derived columns durably, if a call asks for it | derived | alone
5232 | derived values of a failed call kept | changing | step: 0 in derived columns that it does not name | derived | alone
5177 | cut files of derived columns kept | changing | recover: a chunk file of a derived column that is cut is made again | derived | alone
5177 | checksums of changed values kept | changing | update: the checksum of a chunk file goes before a value in it changes | checksum | alone
"""

_CHANGES: dict[str, Callable[[], list[Change]]] = {}
"""What is changed for each, by name."""


def _changes(function: Callable[[], list[Change]]) -> Callable[[], list[Change]]:
    _CHANGES[function.__name__.strip("_").replace("_", " ")] = function
    return function


def _putting(
    how: Callable[..., Change], owner: Any, name: str, *, inside: tuple[Any, str] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def changes() -> list[Change]:
            change = how(owner, name, function)
            return [during(*inside, change) if inside else change]

        changes.__name__ = function.__name__
        _changes(changes)
        return function

    return register


_replaces = functools.partial(_putting, instead)
"""A function is called instead of a real one, which it gets first."""
_precedes = functools.partial(_putting, before)
_follows = functools.partial(_putting, after)


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


def _with_flushed(flushed: Callable[[Log, int], int]) -> list[Change]:
    """`_sync_rows` that takes more rows for flushed than were."""
    real = flush._sync_rows

    def sync_rows(log: Log, head: int) -> None:
        with changed([(log, "flushed", flushed(log, head))]):
            real(log, head)

    return [(flush, "_sync_rows", sync_rows)]


# ---------------------------------------------------------------- create


# ---------------------------------------------------------------- steps, and how episodes end


@_changes
def _commit_before_the_values() -> list[Change]:
    def commit(writer: Any, *_: Any, **__: Any) -> None:
        writer._prepare()
        writer._words[COMMITTED] = writer._head + 1

    return [before(one, "step", commit) for one in _WRITERS]


@_changes
def _finals_committed_first() -> list[Change]:
    # Twice: a call may be interrupted before a store, and here it has to be after the first one.
    twice = lambda _, ends, *__: (ends.commit(), ends.commit())  # noqa: E731
    return [after(Ends, "add", twice)]


@_follows(Ends, "add")
def _final_observations_not_pending(_: Any, ends: Any, ids: Any, *__: Any) -> None:
    row = int(ids[0]) // ends._n
    if row == ends._lane.rows.head:  # of a step, and not of a reset
        for path in ends._frames:
            ends._rows.stored(path, row + 1).reshape(ends._n, -1)[ids % ends._n] = 0


@_replaces(Ends, "ended")
def _newest_step_judged_by_ends_of_its_row(_: Any, self: Any, row: int) -> Any:
    return self._rows.stored("ends", row).reshape(-1) != 0


@_replaces(Index, "_newest")
def _newest_step_read_by_ends_of_its_row(real: Any, self: Index, ids: Any) -> Any:
    over, cut, pending = real(self, ids)
    return (self._ends.take(ids) != 0 if pending else over), cut, pending


@_replaces(LaneFinals, "find")
def _finals_searched_by_entry(_: Any, self: LaneFinals, entries: Any) -> Any:
    out = self.ids.searchsorted(entries)
    found = self.ids.take(out, mode="clip") == entries if self.ids.size else out < 0
    return np.where(found, out + self.base, -1)


@_replaces(Ends, "settle")
def _interrupt_forgotten(_: Any, self: Any) -> Any:
    head = self._lane.rows.head
    return self.ended(head - 1) if head else None


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


@_replaces(VectorWriter, "_leave_out")
def _values_of_those_left_out_kept(real: Any, self: VectorWriter, t: int, absent: Any) -> int:
    columns, log = self._rows.columns, self._rows.log
    only = {"step": columns["step"]}
    with changed([(self._rows, "columns", only), (log, "tails", {})]):
        return real(self, t, absent)


# ---------------------------------------------------------------- seal, checkpoint


def _shards_written_with(*skipped: Change) -> list[Change]:
    real = durable_writes.write_file

    def write_file(path: Path, data: bytes, **how: bool) -> None:
        with changed([*skipped] if _is_shard(path) else []):
            real(path, data, **how)

    return [(durable_writes, "write_file", write_file)]


@_replaces(CheckpointFile, "write")
def _half_given_back_without_a_checkpoint(real: Any, self: CheckpointFile, **changes: Any) -> None:
    if changes.keys() != {"tail_start"}:
        real(self, **changes)


@_precedes(CheckpointFile, "write")
def _slot_over_the_best(self: CheckpointFile, **_: Any) -> None:
    self._offset = state_page.PAGE_BYTES - self._offset


# ---------------------------------------------------------------- flush, evict


@_follows(flush, "flush_rows")
def _names_made_meanwhile_forgotten(_: Any, lane: LockedLane, **__: Any) -> None:
    for log in lane.logs:
        log.fresh.clear()


@_changes
def _head_read_late() -> list[Change]:
    def change(log: Log, changes: dict[str, Any]) -> None:
        if "head" in changes:
            changes["head"] = log.head

    return _slots(change)


def _flushing(flush_rows: Callable[..., None]) -> list[Change]:
    return [(flush, "flush_rows", flush_rows)]


@_changes
def _steps_flushed_first() -> list[Change]:
    def flush_rows(lane: LockedLane, **how: Any) -> None:
        head = lane.promised = lane.finished()
        flush._flush_steps(lane, head, **how)
        flush._flush_finals(lane, head)

    return _flushing(flush_rows)


@_changes
def _checkpoint_before_the_rows() -> list[Change]:
    real = flush.flush_rows, flush._sync_rows

    def flush_rows(lane: LockedLane, **how: Any) -> None:
        with changed([(flush, "_sync_rows", nothing)]):
            real[0](lane, **how)
        for log in lane.logs:
            real[1](log, log.head)

    return _flushing(flush_rows)


@_precedes(flush, "flush_rows")
def _evict_before_the_checkpoint(lane: LockedLane, **_: Any) -> None:
    log = lane.rows
    base = flush._base_of(lane, lane.first_row(lane.finished()))
    log.before += lane.episodes_in(log.base, base) if base > log.base else 0
    log.state.words[EPISODES_BEFORE] = log.before
    log.state.words[BASE] = log.base = base
    flush.evict(log)


# ---------------------------------------------------------------- close


@_precedes(build_lane, "write_metadata")
def _live_removed_too_early(path: Path, metadata: dict[str, Any], *_: Any, **changes: Any) -> None:
    if {**metadata, **changes}.get("closed"):
        for log in (path, path / "finals"):
            durable_writes.remove_tree(log / ".live")


# ---------------------------------------------------------------- open a closed lane


@_changes
def _still_closed() -> list[Change]:
    def keep(_: Path, metadata: dict[str, Any], *__: Any, **changes: Any) -> dict[str, Any]:
        return {**metadata, **changes}

    return [during(recover, "reopen", (build_lane, "write_metadata", keep))]


@_precedes(recover, "reopen")
def _opened_too_early(document: Any, *_: Any) -> None:
    build_lane.write_metadata(document.path, document.metadata, closed=False)


# ---------------------------------------------------------------- recover


@_follows(recover, "recover")
def _dirty_chunks_forgotten(_: Any, __: Any, *logs: Any) -> None:
    for log in logs[:2]:
        log.flushed = log.head


@_replaces(recover, "_unpack", inside=(recover, "_go_back"))
def _pending_row_not_rebuilt(real: Any, log: Log, start: int, stop: int) -> None:
    real(log, start, stop - log.pending)


@_replaces(CheckpointFile, "write", inside=(recover, "recover"))
def _checkpoint_of_a_tail_that_is_gone(
    real: Any, self: CheckpointFile, *, tail_start: int, **changes: int
) -> None:
    del tail_start  # that of the slot before is copied
    real(self, **changes)


# ---------------------------------------------------------------- paths, links, copies


@_changes
def _paths_looked_up_by_name() -> list[Change]:
    def at(path: AnyPath) -> tuple[str, None]:
        return str(path), None

    return [(owner, "at", at) for owner in (held_directories, checked_reads, durable_writes, power)]


@_replaces(State, "is_of_this_boot")
def _state_trusted_in_a_copy(real: Any, self: State) -> bool:
    home = self.words[state_page._HOME_DEVICE], self.words[state_page._HOME_INODE]
    with mock.patch.object(self, "_home", home):
        return real(self)


# ---------------------------------------------------------------- priorities


@_replaces(recover, "end_values")
def _priorities_of_the_newest_row_zeroed(real: Any, lane: AnyPath, spec: Any, head: int) -> None:
    real(lane, spec, max(head - 1, 0))


@_replaces(LaneWriter, "_put_extras")
def _derived_values_of_a_failed_call_kept(_: Any, self: Any, t: int, values: Any) -> None:
    self._put(t, values)


def _without(path: str, owner: Any, name: str) -> list[Change]:
    """A function that does nothing for the column at this path."""
    return [unless(lambda _, spec, *__: spec.path.startswith(path), owner, name)]


# ---------------------------------------------------------------- those of one line

_CHANGES |= {
    "create unsynced": lambda: [during(create, "_make", (durable_writes, "sync_tree", nothing))],
    "create with a name unsynced": lambda: [
        no_sync(durable_writes, "replace_directory", of="directories"),
        (durable_writes, "sync_name", nothing),  # which would make up for it
    ],
    "opened with a name unsynced": lambda: [(durable_writes, "sync_name", nothing)],
    "pending row used after a reset": lambda: [(JoinedLanes, "is_settled", lambda *_: True)],
    "ended with a final that is not durable": lambda: [
        during(Ends, "end_newest", (flush, "flush_finals", nothing))
    ],
    "episodes left running at an opening": lambda: _keeping_ends(None, "end_running"),
    "episodes left running at a reset": lambda: [
        one for writer in _WRITERS for one in _keeping_ends(writer, "end_newest")
    ],
    "shard unsynced": lambda: _shards_written_with(unless(_is_regular, durable_writes, "_fsync")),
    "shard with a name unsynced": lambda: _shards_written_with(
        (durable_writes, "sync_directory", nothing)
    ),
    "seal that writes the head": lambda: _slots(
        lambda log, changes: changes.setdefault("head", log.head)
    ),
    "half used before it is sealed": lambda: [(Sealer, "wait", nothing)],
    "slot unsynced": lambda: [no_sync(CheckpointFile, "write", of="files")],
    "tail unsynced": lambda: [
        during(flush, "_sync_rows", unless(_is_tail, durable_writes, "sync_file"))
    ],
    "chunks unsynced": lambda: [
        during(flush, "_sync_rows", unless(_is_no_tail, durable_writes, "sync_file"))
    ],
    "newest chunks only": lambda: _with_flushed(lambda _, head: head),
    "newest row of the last flush forgotten": lambda: _with_flushed(lambda log, _: log.flushed + 1),
    "pending row unsynced": lambda: [during(flush, "_sync_rows", (Log, "beyond", lambda *_: 0))],
    "names unsynced": lambda: [
        during(flush, "flush_rows", (durable_writes, "sync_directory", nothing))
    ],
    "steps counted though their finals are not committed": lambda: [
        (LockedLane, "finished", lambda lane: lane.rows.head)
    ],
    "flush that leaves out the base": lambda: _slots(lambda _, changes: changes.pop("base", None)),
    "flush that leaves out how many episodes went": lambda: _slots(
        lambda _, changes: changes.pop("before", None)
    ),
    "context evicted": lambda: [
        (flush, "_base_of", lambda lane, first: max(lane.rows.base, first))
    ],
    "root unsynced": lambda: [
        during(build_lane, "write_metadata", unless(_is_regular, durable_writes, "_fsync"))
    ],
    "root with a name unsynced": lambda: [
        during(build_lane, "write_metadata", (durable_writes, "sync_directory", nothing))
    ],
    "unused rows kept": lambda: [(close, "_zero_unused", nothing)],
    "zeros unsynced": lambda: [
        during(durable_writes, "zero_ranges", (durable_writes, "_fdatasync", nothing))
    ],
    "checksums of a close unsynced": lambda: [
        during(close, "_finish_checksums", (Checksums, "sync", nothing))
    ],
    "shapes unsynced": lambda: [not_durable(close, "_write_shapes")],
    "shards of a closed lane unsynced": lambda: [
        during(close, "_seal", unless(_is_regular, durable_writes, "_fsync"))
    ],
    "new live unsynced": lambda: [
        during(recover, "reopen", (durable_writes, "sync_tree", nothing))
    ],
    "pending chunk file unsynced": lambda: [
        during(recover, "_rebuild_live", (durable_writes, "sync_all", nothing))
    ],
    "short shard not unpacked": lambda: [during(recover, "reopen", (recover, "_unpack", nothing))],
    "checksums kept": lambda: [(Checksums, "forget", nothing)],
    "nothing synced first": lambda: [
        during(
            recover,
            "recover",
            *(
                (durable_writes, name, nothing)
                for name in ("sync_file", "sync_tree", "sync_directory")
            ),
        )
    ],
    "state trusted after a reboot": lambda: [
        (State, "trusted", lambda self, best: self.words[COMMITTED] >= best.head)
    ],
    "state never trusted": lambda: [(State, "trusted", lambda *_: False)],
    "tail not rebuilt": lambda: [during(recover, "recover", (recover, "_unpack", nothing))],
    "pending row swept": lambda: [during(recover, "_sweep", (Log, "beyond", lambda *_: 0))],
    "rebuilt tail unsynced": lambda: [
        during(recover, "recover", unless(_is_tail, durable_writes, "sync_file"))
    ],
    "no checkpoint after recovery": lambda: [
        during(recover, "recover", (CheckpointFile, "write", nothing))
    ],
    "finals of lost steps kept": lambda: [(recover, "_drop_finals", nothing)],
    "finals dropped without a checkpoint": lambda: [
        during(recover, "_drop_finals", (recover, "_write_checkpoint", nothing))
    ],
    "finals of a recovery not durable": lambda: [
        during(Ends, name, (flush, "flush_finals", nothing)) for name in ("end_running", "settle")
    ],
    "litter kept": lambda: [(recover, "_remove_litter", nothing)],
    "old chunks kept": lambda: [(recover, "_sweep", nothing)],
    "shared files written": lambda: [(durable_writes, "make_own", nothing)],
    "shared state page written": lambda: [(State, "make_own", staticmethod(nothing))],
    "shared tail used again": lambda: [(Sealer, "_replace_tails", nothing)],
    "state trusted though truncated": lambda: [(state_page, "_blocks", lambda _: 1 << 40)],
    "priorities of evicted rows kept": lambda: _without("priorities", chunk_files, "remove_below"),
    "priorities of lost rows kept": lambda: _without("priorities", recover, "end_values"),
    "priorities unsynced": lambda: _without("priorities", flush, "sync_values"),
    "derived values of lost rows kept": lambda: _without("derived", recover, "end_values"),
    "derived values unsynced": lambda: _without("derived", flush, "sync_values"),
    "cut files of derived columns kept": lambda: [(recover, "_own_columns", nothing)],
    "checksums of changed values kept": lambda: [(ChangingColumn, "begin", nothing)],
}


def _mutant(row: str) -> tuple[str, Mutant]:
    seed, name, layouts, rule, noticed, others = [*row.split(" | "), "", ""][:6]
    at_work = {"": None, "others": True, "alone": False}[others]
    seeds = [int(seed)] if seed.strip() else []
    return name, Mutant(rule, _CHANGES[name], _LAYOUTS[layouts], at_work, noticed, seeds)


MUTANTS = dict(map(_mutant, _TABLE.strip("\n").splitlines()))
