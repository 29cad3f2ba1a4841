"""The protocol of docs/format.md with one of its rules left out: the simulator has to see each.

Invariant: every mutant breaks one sentence of "State of a live lane" or "Order of writes" there and
changes nothing else, so that a simulator that finds nothing wrong with it would find nothing wrong
with the real code.

Rules that no single history of one lane can break, or hardly ever one, have no mutant here, but
tests of their own that go red without them:

- whose file a state page is, which boot the best slot is of, that the page is not trusted below
  that slot, the number of a session, and 0 after the last one: tests/unit/storage/test_state_page.py;
- of recovery and its opening that tail_start and base are the greater ones, that files go last,
  that checksums go from row head - 1, and of shards from tail_start, that scalars past the head
  are zeroed: tests/unit/writing/test_recover.py;
- that the checksums that recovery took away do not come back, and that a close is durable before
  the next writer removes anything: tests/crash/test_power_cut.py;
- the lock: test_misuse.py; errors of the disk: test_failing_calls.py;
- the random state: tests/unit/datasets/test_replay_buffer.py; priorities: tests/property/test_priorities.py.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from mmreplay.schema import Field
from mmreplay.storage import checkpoint, state_page
from mmreplay.storage.checkpoint import CheckpointFile
from mmreplay.storage.checksums import Checksums
from mmreplay.storage.state_page import BASE, COMMITTED, SESSION, TAIL_START, State
from mmreplay.system import checked_reads, durable_writes, held_directories, platform
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane, close, create, flush, recover
from mmreplay.writing.kept_rows import LaneRows
from mmreplay.writing.lane_files import LockedLane
from mmreplay.writing.log import Log
from mmreplay.writing.open_chunks import OpenChunks
from mmreplay.writing.seal import Sealer
from mmreplay.writing.writer import Writer
from tests.support.oracle.layout import Layout
from tests.support.power_cut import power
from tests.support.power_cut.layouts import LAYOUTS, AnyLayout
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
    with_flushed,
)

__all__ = ["MUTANTS"]

MUTANTS: dict[str, Mutant] = {}
_WITH_TAIL = [one for one in LAYOUTS if any(x.codec != "raw" for x in one.schema.frames.values())]
_EVICTING = [one for one in LAYOUTS if one.capacity is not None]
# Of a power cut, many rows that were never committed may be left past the head of a chunk file.
_LONG = [Layout(Field((200,), "uint8", "raw", 60), Field((), "int64", chunk=90), {})]


def _breaks(
    rule: str, layouts: Sequence[AnyLayout] = LAYOUTS, *, others: bool | None = None
) -> Callable[[Callable[[], list[Change]]], Callable[[], list[Change]]]:
    return breaking(MUTANTS, rule, layouts, others=others)


def _is_shard(path: Path, *_: Any, **__: Any) -> bool:
    return path.name.startswith("c.")


def _is_tail(path: AnyPath, *_: Any, **__: Any) -> bool:
    return path.name.endswith(".tail")


def _is_no_tail(path: AnyPath, *_: Any, **__: Any) -> bool:
    return not path.name.endswith(".tail")


def _slots(change: Callable[[Log, dict[str, Any]], None]) -> list[Change]:
    """Checkpoints whose values a function changes that knows the lane."""

    def remember(_: Any, lane: LockedLane, *__: Any) -> None:
        lane.log.checkpoint.lane = lane.log  # type: ignore[attr-defined]

    real = CheckpointFile.write

    def write(self: CheckpointFile, **changes: Any) -> None:
        lane = getattr(self, "lane", None)
        if lane is not None:
            change(lane, changes)
        real(self, **changes)

    return [after(LockedLane, "_open", remember), (CheckpointFile, "write", write)]


@_breaks("create: every file and directory fsynced before the rename")
def _create_unsynced() -> list[Change]:
    return [during(create, "_make", (durable_writes, "sync_tree", nothing))]


@_breaks("create: renamed, then the parent fsynced")
def _create_with_a_name_unsynced() -> list[Change]:
    return [
        no_sync(durable_writes, "replace_directory", of="directories"),
        (durable_writes, "sync_name", nothing),  # which would make up for it
    ]


@_breaks("recover: fsync the directory above, whose entry a killed maker may have left unsynced")
def _opened_with_a_name_unsynced() -> list[Change]:
    return [(durable_writes, "sync_name", nothing)]


@_breaks("create: with a valid checkpoint")
def _create_without_a_checkpoint() -> list[Change]:
    def create(path: Path, *_: Any, **__: Any) -> None:
        durable_writes.write_file(path, bytes(2 * checkpoint.PAGE_BYTES))

    return [(CheckpointFile, "create", staticmethod(create))]


@_breaks("append: the row's values to their places, then committed")
def _commit_before_the_values() -> list[Change]:
    def commit(writer: Writer, *_: Any, **__: Any) -> None:
        writer._prepare()
        writer._words[COMMITTED] = writer._head + 1

    return [before(Writer, "step", commit)]


@_breaks("append: recovery and reset rewrite the newest row as a final row")
def _newest_row_not_final() -> list[Change]:
    return [(OpenChunks, "finish_row", nothing)]


@_breaks("seal: fsync the shard before it gets its name", _WITH_TAIL)
def _shard_unsynced() -> list[Change]:
    real = durable_writes.write_file

    def write_file(path: Path, data: bytes, **how: bool) -> None:
        with contextlib.ExitStack() as stack:
            if _is_shard(path):
                stack.enter_context(changed([unless(_is_regular, durable_writes, "_fsync")]))
            real(path, data, **how)

    return [(durable_writes, "write_file", write_file)]


def _is_regular(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


@_breaks("seal: fsync the directory after the rename", _WITH_TAIL)
def _shard_with_a_name_unsynced() -> list[Change]:
    real = durable_writes.write_file

    def write_file(path: Path, data: bytes, **how: bool) -> None:
        with contextlib.ExitStack() as stack:
            if _is_shard(path):
                stack.enter_context(mock.patch.object(durable_writes, "sync_directory", nothing))
            real(path, data, **how)

    return [(durable_writes, "write_file", write_file)]


@_breaks("seal: a checkpoint slot, and only then may the half be used again", _WITH_TAIL)
def _half_given_back_without_a_checkpoint() -> list[Change]:
    real = CheckpointFile.write

    def write(self: CheckpointFile, **changes: Any) -> None:
        if changes.keys() != {"tail_start"}:
            real(self, **changes)

    return [(CheckpointFile, "write", write)]


@_breaks("seal: the slot copies the newest slot and changes only tail_start", _WITH_TAIL)
def _seal_that_writes_the_head() -> list[Change]:
    def change(lane: Log, changes: dict[str, Any]) -> None:
        changes.setdefault("head", lane.head)

    return _slots(change)


@_breaks("seal: then state.tail_start, and only then may the half be used again", _WITH_TAIL)
def _half_used_before_it_is_sealed() -> list[Change]:
    return [(Sealer, "wait", nothing)]


@_breaks("checkpoint: fdatasync the slot")
def _slot_unsynced() -> list[Change]:
    return [no_sync(CheckpointFile, "write", of="files")]


@_breaks("checkpoint: a write always goes to the slot that is not the best one")
def _slot_over_the_best() -> list[Change]:
    def other(self: CheckpointFile, **_: Any) -> None:
        self._offset = checkpoint.PAGE_BYTES - self._offset

    return [before(CheckpointFile, "write", other)]


@_breaks("flush: fdatasync the tail", _WITH_TAIL)
def _tail_unsynced() -> list[Change]:
    return [during(flush, "_sync_rows", unless(_is_tail, durable_writes, "sync_file"))]


@_breaks("flush: fdatasync the chunk files")
def _chunks_unsynced() -> list[Change]:
    return [during(flush, "_sync_rows", unless(_is_no_tail, durable_writes, "sync_file"))]


@_breaks("flush: every chunk file written since, filled ones too")
def _newest_chunks_only() -> list[Change]:
    return with_flushed(lambda _, head: head)


@_breaks("append: row head - 1 is the only row that still changes")
def _newest_row_of_the_last_flush_forgotten() -> list[Change]:
    return with_flushed(lambda lane, _: lane.flushed + 1)


@_breaks("flush: fsync the directories")
def _names_unsynced() -> list[Change]:
    return [during(flush, "flush_rows", (durable_writes, "sync_directory", nothing))]


@_breaks("flush: take the sets of files and directories written since the last flush, then sync")
def _names_made_meanwhile_forgotten() -> list[Change]:
    def forget(_: Any, lane: LockedLane) -> None:
        lane.log.fresh.clear()

    return [after(flush, "flush_rows", forget)]


@_breaks("flush: read committed before anything is synced")
def _head_read_late() -> list[Change]:
    def change(lane: Log, changes: dict[str, Any]) -> None:
        if "head" in changes:
            changes["head"] = lane.head

    return _slots(change)


@_breaks("flush: read tail_start after the rows are synced", _WITH_TAIL)
def _tail_start_read_early() -> list[Change]:
    def remember(lane: LockedLane) -> None:
        lane.log.early = lane.log.tail_start  # type: ignore[attr-defined]

    def change(lane: Log, changes: dict[str, Any]) -> None:
        if "head" in changes:
            changes["tail_start"] = lane.early  # type: ignore[attr-defined]

    return [before(flush, "flush_rows", remember), *_slots(change)]


@_breaks("flush: write the other slot, with the base that the capacity asks for", _EVICTING)
def _flush_that_leaves_out_the_base() -> list[Change]:
    return _slots(lambda _, changes: changes.pop("base", None))


@_breaks("flush: write the other slot after the rows are synced")
def _checkpoint_before_the_rows() -> list[Change]:
    real = flush.flush_rows, flush._sync_rows

    def flush_rows(lane: LockedLane) -> None:
        with changed([(flush, "_sync_rows", nothing)]):
            real[0](lane)
        real[1](lane.log, lane.log.head)

    return [(flush, "flush_rows", flush_rows)]


@_breaks("evict: files below the base of the last checkpointed state", _EVICTING)
def _evict_before_the_checkpoint() -> list[Change]:
    def evict(lane: LockedLane) -> None:
        log = lane.log
        base = flush._base_of(log, log.kept.first_row(log.head))
        log.words[BASE] = log.base = base
        flush.evict(log)

    return [before(flush, "flush_rows", evict)]


@_breaks("evict: after state.base was stored", _EVICTING)
def _evict_before_the_base_is_stored() -> list[Change]:
    real = flush.evict

    def remember(lane: LockedLane) -> None:
        lane.log.early = lane.log.base  # type: ignore[attr-defined]

    def evict(lane: Log) -> None:
        base, lane.words[BASE] = lane.words[BASE], lane.early  # type: ignore[attr-defined]
        real(lane)
        lane.words[BASE] = base

    return [before(flush, "flush_rows", remember), (flush, "evict", evict)]


@_breaks("base: the oldest row that is kept, as context for stacks", _EVICTING)
def _context_evicted() -> list[Change]:
    return [(flush, "_base_of", lambda log, first: max(log.base, first))]


@_breaks("close: everything durable, then closed = true")
def _closed_too_early() -> list[Change]:
    def say_closed(lane: Log, **_: Any) -> None:
        build_lane.write_metadata(
            lane.path,
            lane.metadata,
            rows=lane.head,
            first=lane.first,
            closed=True,
        )

    return [before(close, "_finish", say_closed)]


def _closing(metadata: dict[str, Any], **changes: Any) -> bool:
    return bool({**metadata, **changes}.get("closed"))


@_breaks("close: closed = true, then remove .live")
def _live_removed_too_early() -> list[Change]:
    def remove(path: Path, metadata: dict[str, Any], *_: Any, **changes: Any) -> None:
        if _closing(metadata, **changes):
            durable_writes.remove_tree(path / ".live")

    return [before(build_lane, "write_metadata", remove)]


@_breaks("close: the root zarr.json beside, fsync, rename")
def _root_unsynced() -> list[Change]:
    return [during(build_lane, "write_metadata", unless(_is_regular, durable_writes, "_fsync"))]


@_breaks("close: the root zarr.json renamed, fsync the directory, then remove .live")
def _root_with_a_name_unsynced() -> list[Change]:
    return [during(build_lane, "write_metadata", (durable_writes, "sync_directory", nothing))]


@_breaks("close: the unused end of the last chunk file is zeros")
def _unused_rows_kept() -> list[Change]:
    return [(close, "_zero_unused", nothing)]


@_breaks("close: zeros past the last row, durable before closed = true", _LONG)
def _zeros_unsynced() -> list[Change]:
    return [during(durable_writes, "zero_ranges", (durable_writes, "_fdatasync", nothing))]


@_breaks("close: the missing checksums, durable before closed = true")
def _checksums_of_a_close_unsynced() -> list[Change]:
    return [during(close, "_finish_checksums", (Checksums, "sync", nothing))]


@_breaks("close: episodes/starts, durable before closed = true")
def _index_unsynced() -> list[Change]:
    return [not_durable(LaneRows, "finish")]


@_breaks("close: the shapes of all arrays, durable before closed = true")
def _shapes_unsynced() -> list[Change]:
    return [not_durable(close, "_write_shapes")]


@_breaks("close: seal the tail into a last, short shard", _WITH_TAIL)
def _shards_of_a_closed_lane_unsynced() -> list[Change]:
    return [during(close, "_seal_here", unless(_is_regular, durable_writes, "_fsync"))]


@_breaks("reopen: a .live beside closed = true is litter, deleted first")
def _litter_reused() -> list[Change]:
    real = recover.reopen

    def reopen(path: Path, metadata: dict[str, Any], *rest: Any, before: Any, **limits: Any) -> Any:
        if (path / ".live" / "state").exists():
            return recover.recover(path, {**metadata, "closed": False}, *rest, **limits)
        return real(path, metadata, *rest, before=before, **limits)

    return [(recover, "reopen", reopen)]


@_breaks("reopen: fsync files and directories of .live before closed = false")
def _new_live_unsynced() -> list[Change]:
    return [during(recover, "reopen", (durable_writes, "sync_tree", nothing))]


@_breaks("reopen: closed = false durably, and only then touch a chunk file")
def _still_closed() -> list[Change]:
    def keep(_: Path, metadata: dict[str, Any], **changes: Any) -> dict[str, Any]:
        return {**metadata, **changes}

    return [during(recover, "reopen", (build_lane, "write_metadata", keep))]


@_breaks("reopen: a fresh tail, state and checkpoint, then closed = false")
def _opened_too_early() -> list[Change]:
    def open_(path: Path, metadata: dict[str, Any], *_: Any, **__: Any) -> None:
        build_lane.write_metadata(path, metadata, closed=False)

    return [before(recover, "reopen", open_)]


@_breaks("reopen: closed = false, and only then zero the checksums")
def _checksums_forgotten_too_early() -> list[Change]:
    real = recover.reopen

    def reopen(
        path: Path,
        metadata: dict[str, Any],
        specs: Any,
        sums: Checksums,
        *rest: Any,
        **limits: Any,
    ) -> Any:
        def forget(*_: Any, **__: Any) -> None:
            sums.forget(metadata["rows"], recover.shard_start(specs, metadata["rows"]))
            sums.sync()

        with changed([before(build_lane, "write_metadata", forget)]):
            return real(path, metadata, specs, sums, *rest, **limits)

    return [(recover, "reopen", reopen)]


@_breaks("reopen: unpack the last, short shard into a fresh tail", _WITH_TAIL)
def _short_shard_not_unpacked() -> list[Change]:
    return [during(recover, "reopen", (recover, "_unpack", nothing))]


@_breaks("reopen, recover: zero the checksums of chunks that change again")
def _checksums_kept() -> list[Change]:
    return [(Checksums, "forget", nothing)]


@_breaks("recover: first fsync what a killed process may have left in the page cache only")
def _nothing_synced_first() -> list[Change]:
    names = "sync_file sync_tree sync_directory".split()
    return [during(recover, "recover", *((durable_writes, name, nothing) for name in names))]


@_breaks("recover: take every kept chunk file as dirty")
def _dirty_chunks_forgotten() -> list[Change]:
    def forget(live: recover.Live, *_: Any, **__: Any) -> None:
        live.flushed = live.head

    return [after(recover, "recover", forget)]


@_breaks("recover: the state is trusted only if its boot id is the current one")
def _state_trusted_after_a_reboot() -> list[Change]:
    return [(State, "trusted", lambda self, best: self.words[COMMITTED] >= best.head)]


@_breaks("recover: a state of this boot and file is trusted, and not the checkpoint")
def _state_never_trusted() -> list[Change]:
    return [(State, "trusted", lambda *_: False)]


@_breaks("state: stored last, the boot id")
def _boot_id_stored_first() -> list[Change]:
    def start(self: State, *, base: int, tail_start: int, committed: int) -> None:
        words = self.words
        self.name_files()
        boot = struct.unpack("<QQ", platform.boot_id())
        words[state_page._BOOT], words[state_page._BOOT + 1] = boot
        words[0] = state_page._MAGIC
        words[BASE], words[TAIL_START], words[COMMITTED] = base, tail_start, committed
        words[SESSION] = 1

    return [(State, "start", start)]


@_breaks("recover: if tail_start > head, unpack that shard into the tail", _WITH_TAIL)
def _tail_not_rebuilt() -> list[Change]:
    return [during(recover, "recover", (recover, "_unpack", nothing))]


@_breaks("recover: fdatasync the rebuilt tail, then checkpoint", _WITH_TAIL)
def _rebuilt_tail_unsynced() -> list[Change]:
    return [during(recover, "recover", unless(_is_tail, durable_writes, "sync_file"))]


@_breaks("recover: checkpoint")
def _no_checkpoint_after_recovery() -> list[Change]:
    return [during(recover, "recover", (CheckpointFile, "write", nothing))]


@_breaks("recover: a checkpoint of the tail_start that was rounded down", _WITH_TAIL)
def _checkpoint_of_a_tail_that_is_gone() -> list[Change]:
    real = CheckpointFile.write

    def write(self: CheckpointFile, *, tail_start: int, **changes: int) -> None:
        del tail_start  # that of the slot before is copied
        real(self, **changes)

    return [during(recover, "recover", (CheckpointFile, "write", write))]


@_breaks("recover: delete *.tmp")
def _litter_kept() -> list[Change]:
    return [(recover, "_remove_litter", nothing)]


@_breaks("recover: delete shards and chunk files past head and wholly below base")
def _old_chunks_kept() -> list[Change]:
    return [(recover, "_sweep", nothing)]


@_breaks("lock: a writer looks files up from the directory that it has locked", others=True)
def _paths_looked_up_by_name() -> list[Change]:
    def at(path: AnyPath) -> tuple[str, None]:
        return str(path), None

    return [(owner, "at", at) for owner in (held_directories, checked_reads, durable_writes, power)]


@_breaks("a file of several names is replaced by a copy before it is written in place", others=True)
def _shared_files_written() -> list[Change]:
    return [(durable_writes, "make_own", nothing)]


@_breaks("recover: a state page of several names is replaced by a copy", others=True)
def _shared_state_page_written() -> list[Change]:
    return [(State, "make_own", staticmethod(nothing))]


@_breaks(
    "seal: a tail of several names is replaced before its half is used again",
    _WITH_TAIL,
    others=True,
)
def _shared_tail_used_again() -> list[Change]:
    return [(Sealer, "_replace_tails", nothing)]


@_breaks("state: trusted only in the directory that it names", others=True)
def _state_trusted_in_a_copy() -> list[Change]:
    real = State.is_of_this_boot

    def is_of_this_boot(self: State) -> bool:
        home = self.words[state_page._HOME_DEVICE], self.words[state_page._HOME_INODE]
        with mock.patch.object(self, "_home", home):
            return real(self)

    return [(State, "is_of_this_boot", is_of_this_boot)]


@_breaks("state: trusted only with the blocks beyond its end that it had", others=True)
def _state_trusted_though_truncated() -> list[Change]:
    return [(state_page, "_blocks", lambda _: 1 << 40)]
