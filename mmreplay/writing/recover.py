"""How a lane is opened for writing: created, reopened after a close, or recovered after a crash.

Invariant: killed at any point, by a signal or a power cut, each of these leaves a lane that the
same code opens again without losing a row more. The order is that of docs/format.md.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FailedStoreError, MmreplayError
from mmreplay.format import layout
from mmreplay.storage import chunk_files, shard_file
from mmreplay.storage.changing_column import end_values
from mmreplay.storage.checksums import crc32c_of_file, damaged, rows_match, stored_checksum
from mmreplay.storage.lane_metadata import LaneDocument
from mmreplay.storage.state_page import (
    BASE,
    COMMITTED,
    EPISODES_BEFORE,
    TAIL_START,
    Checkpoint,
    CheckpointFile,
    State,
    check_rows,
)
from mmreplay.system import checked_reads, durable_writes, platform
from mmreplay.system.disk_errors import FailedSyncError
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane
from mmreplay.writing.episode_log import EpisodeLog
from mmreplay.writing.log import Arrays, Log, syncing_rows

_LOG = logging.getLogger("mmreplay")


def is_as_made(path: AnyPath, metadata: Mapping[str, Any]) -> bool:
    """Whether a log is as it was when its lane got its name, all of it durable."""
    with contextlib.suppress(OSError, CorruptStoreError):
        best = CheckpointFile(path / ".live" / "checkpoint", metadata["uuid"]).best
        if best == Checkpoint(0, 0, 0, 0, 1, platform.boot_id()):
            return State(path / ".live" / "state", writable=False).is_as_made()
    return False


def make_ready(log: Log, metadata: Mapping[str, Any]) -> None:
    """Open a log of a new lane for the first time: there is nothing to recover."""
    _map_live(log, metadata["uuid"])
    for name in checked_reads.names(log.live):
        if name.endswith(".tmp"):
            durable_writes.unlink(log.live / name)
    # Before anything else changes: killed after that, it is recovered as any other.
    log.state.start(base=0, tail_start=0, committed=0, before=0)
    log.base = log.before = log.flushed = log.first = 0


def reopen(
    document: LaneDocument,
    rows: Log,
    finals: Log,
    episodes: EpisodeLog,
    changes: Mapping[str, Any],
) -> dict[str, Any]:
    """Open a closed lane: everything private is durable before its zarr.json, returned, says so."""
    path, metadata = rows.path, document.metadata
    # The close may not be durable yet: if a power cut undid it after `.live` is removed below, the
    # lane would count as open, and need that `.live`.
    durable_writes.sync_directory(path)
    heads = {rows: metadata["rows"], finals: metadata["finals"]}
    rows.base = max(int(metadata["first"]) - layout.CONTEXT_ROWS, 0)
    rows.before = metadata["episodes_before"]
    finals.base, finals.before = metadata["first_final"], 0
    for log in heads:
        durable_writes.remove_tree(log.live)
    _remove_litter(path)
    for log, head in heads.items():
        _check_last_files(log, head)
    episodes.base = rows.before
    _check_last_files(episodes, begun(rows, finals, heads[finals], document.n))
    is_closed = True
    try:
        for log, head in heads.items():
            _rebuild_live(log, head, metadata)
        is_closed = False
        metadata = build_lane.write_metadata(path, metadata, closed=False, **changes)
    except MmreplayError as error:
        if is_closed or not isinstance(error, FailedStoreError):  # else it may be open on disk
            for log, head in heads.items():
                _close_again(log, head)
        raise
    for log, head in heads.items():
        # Not before: killed in between, a closed lane would have files without a checksum. Recovery
        # forgets them as well, and no chunk file has been touched yet.
        log.sums.forget(head, log.shard_start(head))
        log.sums.sync()
        _sweep(log, head)
    _own_columns(rows)
    for log in (finals, rows):
        head = heads[log]
        log.state.start(
            base=log.base, tail_start=log.shard_start(head), committed=head, before=log.before
        )
        log.flushed = head
    return metadata


def _rebuild_live(log: Log, head: int, metadata: Mapping[str, Any]) -> None:
    """`.live` of a closed log, with what its last chunk files hold, durable."""
    tail_start = log.shard_start(head)
    counts = {"head": head, "tail_start": tail_start, "base": log.base, "before": log.before}
    build_lane.build_live(log.path, metadata["uuid"], log.specs, **counts)
    _map_live(log, metadata["uuid"])
    _unpack(log, tail_start, head)
    if log.pending and isinstance(metadata.get("generator"), str):
        durable_writes.write_file(
            build_lane.generator_path(log.path), metadata["generator"].encode(errors="replace")
        )
    durable_writes.sync_tree(log.live)
    durable_writes.sync_directory(log.path)
    for spec in log.raw_specs if head else ():
        # What the last close gave back, and the pending row of frames, which every open lane has.
        chunk = (head - 1 + log.beyond(spec)) // spec.chunk_rows
        path = chunk_files.chunk_path(log.path, spec, chunk)
        durable_writes.allocate(path, spec.chunk_bytes)
        if log.beyond(spec):  # it may be a new file
            durable_writes.sync_all([path], [log.path / spec.path])


def _close_again(log: Log, head: int) -> None:
    """The lane stays closed: remove what this opening has made, which takes room."""
    for spec in log.raw_specs:
        chunk, first = divmod(head, spec.chunk_rows)
        with contextlib.suppress(MmreplayError, OSError):
            if first:
                chunk_files.zero_rows(log.path, spec, chunk, first)
            elif log.beyond(spec):
                durable_writes.unlink(chunk_files.chunk_path(log.path, spec, chunk))
    with contextlib.suppress(MmreplayError):
        durable_writes.remove_tree(log.live)


def begun(rows: Log, finals: Log, n_finals: int, n: int) -> int:
    """How many episodes of a lane have begun, if all of them are over; `n` environments."""
    base = rows.base * n
    firsts = chunk_files.filled_rows(finals, finals.specs["first"], finals.base, n_finals)
    # Those that began below base are counted in `before`.
    cut = sum(int(np.count_nonzero(values < base)) for _, values in firsts) if base else 0
    return rows.before + n_finals - finals.base - cut


def open_episodes(log: EpisodeLog, *, recovered: bool) -> None:
    """Open the fields of the episodes [base, head) of a lane; CorruptStoreError: a file is gone."""
    _check_files(log, range(log.base, log.head), 0)
    _sweep(log, log.head)
    log.open(recovered=recovered)


def _check_last_files(log: Arrays, head: int) -> None:
    """Check the last chunk files of a closed log: their checksums will be made again by a close."""
    for spec in log.specs.values():
        if head <= log.base or not (spec.is_raw or head % spec.chunk_rows):
            continue  # nothing is kept, or a whole shard, which stays as it is
        chunk = (head - 1) // spec.chunk_rows
        file = chunk_files.chunk_path(log.path, spec, chunk)
        try:
            if spec.is_raw:
                sound = rows_match(log.path, spec, chunk, head)
            else:
                found = crc32c_of_file(file, shard_file.file_size(file, spec))
                sound = found == stored_checksum(log.path, spec, chunk)
        except FileNotFoundError as error:
            if spec.may_change:  # of rows without values
                continue
            raise damaged(file, "missing") from error
        if not sound and not spec.may_change:
            raise damaged(file)
        if not sound and stored_checksum(log.path, spec, chunk):  # costs no row
            _LOG.warning("%s", damaged(file))


def recover(
    document: LaneDocument,
    rows: Log,
    finals: Log,
    episodes: EpisodeLog,
    changes: Mapping[str, Any],
) -> tuple[dict[str, Any], int]:
    """Open a lane whose writer died; returns attributes.mmreplay, and how many steps it lost."""
    path, metadata, capacity = rows.path, document.metadata, document.metadata["capacity"]
    # What a killed process left may be only in the page cache: make durable what is about to be
    # trusted.
    durable_writes.sync_file(path / "zarr.json")
    _sync_live(rows, finals)
    for log in (rows, finals):
        try:
            _map_live(log, metadata["uuid"])
        except (FileNotFoundError, NotADirectoryError) as error:
            raise CorruptStoreError(
                f"{path}: expected .live with state, checkpoint and tails, as this lane was not "
                f"closed; {error.filename} is missing"
            ) from error
    names = [(log.path, name) for log in (rows, finals, episodes) for name in log.specs]
    arrays = [log / name for log, name in names]
    sums = [log / layout.checksum_spec(name).path for log, name in names]
    durable_writes.sync_all(directories=[path, finals.path, *arrays, *sums])
    finals.is_trusted = finals.state.trusted(finals.checkpoint.best)
    rows.is_trusted = finals.is_trusted and rows.state.trusted(rows.checkpoint.best)
    if not finals.is_trusted:
        # Steps after the last flush may have ended episodes whose final observations are lost. Now:
        # killed after that, the finals would be trusted again.
        rows.state.distrust()
    lost = 0 if rows.is_trusted else rows.state.rows_beyond(rows.checkpoint.best.head)
    head = _go_back(rows, capacity)
    n_finals = _go_back(finals, capacity)
    _drop_finals(finals, n_finals, head * document.n)
    _remove_litter(path)
    for log in (rows, finals):
        _sweep(log, log.head)
        log.sums.forget(log.head, log.tail_start)
        log.sums.sync()  # a shard written again may have its name before its checksum is durable
        log.flushed = log.base  # every chunk file that is kept counts as written since
    _own_columns(rows)
    for spec in rows.raw_specs:
        if spec.may_change:  # a flush by the clock does not sync the values of the rows to come
            end_values(path, spec, head)
    if any(metadata.get(name) != value for name, value in changes.items()):
        metadata = build_lane.write_metadata(path, metadata, **changes)
    return metadata, lost


def begin(log: Log) -> None:
    """Begin the session of a log that was recovered."""
    if log.is_trusted:
        log.state.resume(base=log.base, tail_start=log.tail_start, before=log.before)
    else:
        log.state.start(
            base=log.base, tail_start=log.tail_start, committed=log.head, before=log.before
        )


def _sync_live(rows: Log, finals: Log) -> None:
    """Make `.live` of both logs durable; if that fails, trust no state from now on."""
    try:
        for log in (rows, finals):
            durable_writes.sync_tree(log.live)
    except FailedSyncError:
        for log in (rows, finals):
            with contextlib.suppress(OSError, CorruptStoreError):
                State(log.live / "state", writable=True).distrust()
        raise


def _go_back(log: Log, capacity: int | None) -> int:
    """Go to the head, tail and base that a log has after a crash; returns the head."""
    best, words, trusted = log.checkpoint.best, log.state.words, log.is_trusted
    head, tail_start = best.head, best.tail_start
    log.base, log.before = best.base, best.before
    if trusted:
        head, tail_start = words[COMMITTED], max(words[TAIL_START], tail_start)
        if words[BASE] > log.base:
            log.base, log.before = words[BASE], words[EPISODES_BEFORE]
    check_rows(log.live, log.base, head, capacity)
    rebuilt = not trusted and tail_start > head
    if rebuilt:  # shards were written after the last flush
        tail_start = log.shard_start(head)
    problems = [chunk_files.tail_problem(log.specs, head, tail_start)]
    if trusted:
        problems += log.state.ahead_of(log.checkpoint)
    for text in filter(None, problems):
        raise CorruptStoreError(f"{log.live}: {text}; run `mmreplay verify`")
    _check_files(log, range(log.base, head), head if rebuilt else tail_start)
    if rebuilt:
        _unpack(log, tail_start, head + log.pending)
    log.checkpoint.renew()
    if trusted:
        words[BASE] = log.base  # before files go: its last flush may not have come so far
        words[EPISODES_BEFORE] = log.before
        if (tail_start, log.base) != (best.tail_start, best.base):
            # Write what only the state says into a checkpoint, as a flush would: the next ones
            # copy it.
            with syncing_rows(log):
                for path in [*log.specs, *[layout.EPISODES] * log.pending]:
                    durable_writes.sync_tree(log.path / path)
            _write_checkpoint(log, head, tail_start)
        words[TAIL_START] = tail_start
    else:
        durable_writes.sync_all(chunk_files.tail_path(log.path, spec) for spec in log.tail_specs)
        log.state.distrust()  # else, after a kill here, the new checkpoint would make it trusted
        _write_checkpoint(log, head, tail_start)
    return head


def _write_checkpoint(log: Log, head: int, tail_start: int) -> None:
    """Write the checkpoint, then the words: only after both may dropped rows be overwritten."""
    log.checkpoint.write(head=head, tail_start=tail_start, base=log.base, before=log.before)
    log.state.words[COMMITTED], log.state.words[TAIL_START] = head, tail_start


def _drop_finals(finals: Log, head: int, stop: int) -> None:
    """Forget the final observations of lost steps, those from the id `stop` on."""
    kept = chunk_files.first_final(finals, finals.specs["id"], stop, finals.base, head)
    if kept == head:
        return
    tail_start = finals.tail_start
    if tail_start > kept:
        tail_start = finals.shard_start(kept)
        _unpack(finals, tail_start, kept)
    durable_writes.sync_all(chunk_files.tail_path(finals.path, spec) for spec in finals.tail_specs)
    _write_checkpoint(finals, kept, tail_start)


def _check_files(log: Arrays, rows: range, tail_start: int) -> None:
    """Check that no chunk file of an open log is missing or cut: a map would add zeros."""
    for spec in log.specs.values():
        if spec.may_change:
            continue
        stop = rows.stop and rows.stop + log.beyond(spec)
        if not spec.is_raw:
            stop = min(rows.stop, tail_start)
        for chunk in range(rows.start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
            file = chunk_files.chunk_path(log.path, spec, chunk)
            try:
                size = file.lstat().st_size
            except FileNotFoundError as error:
                raise damaged(file, "missing") from error
            if spec.is_raw and size != spec.chunk_bytes:
                raise damaged(file, f"expected {spec.chunk_bytes:,} bytes, found {size:,}")


def _map_live(log: Log, store: str) -> None:
    """Map the state page and the tails of a log, and read its checkpoint."""
    live = log.live
    log.checkpoint = CheckpointFile(live / "checkpoint", store)
    if not (live / "state").exists():  # lost with the power, before its name was durable
        State.create(live / "state")
        durable_writes.sync_all([live / "state"], [live])
    State.make_own(live / "state")
    log.tails = {
        spec.path: chunk_files.map_tail(log.path, spec, writable=True) for spec in log.tail_specs
    }
    log.state = State(live / "state", writable=True)


def _unpack(log: Log, start: int, stop: int) -> None:
    """Rows [start, stop) of the shard that begins at `start` into the tail."""
    if stop <= start:
        return
    for spec in log.tail_specs:
        file = chunk_files.chunk_path(log.path, spec, start // spec.chunk_rows)
        shard = shard_file.Shard(file, spec, log.codecs[spec.path])
        buffer = np.empty(spec.inner_bytes, np.uint8)
        for inner in range(-(-(stop - start) // spec.inner_rows) * spec.width):
            rows = chunk_files.tail_rows(spec, log.tails[spec.path], start, inner)
            shard.decode(inner, buffer)
            rows[...] = buffer.view(spec.dtype).reshape(rows.shape)


def _remove_litter(path: AnyPath) -> None:
    for above in ("derived", "checksums/derived"):  # of a column that was being added
        for column in checked_reads.names(path / above):
            if column.endswith(".tmp"):
                durable_writes.remove_tree(path.joinpath(above, column))
    for folder, _, names in checked_reads.walk(path):
        for name in names:
            if name.endswith(".tmp"):
                durable_writes.unlink(folder / name)


def _own_columns(log: Log) -> None:
    """Of columns that may change, let no file be cut, and none have other names."""
    for spec in log.raw_specs:
        if not spec.may_change:
            continue
        for chunk in chunk_files.chunk_files(log.path, spec):
            path = chunk_files.chunk_path(log.path, spec, chunk)
            with contextlib.suppress(CorruptStoreError):  # damaged, it costs no row
                if checked_reads.regular_size(path, spec.chunk_bytes) < spec.chunk_bytes:
                    durable_writes.unlink(path)  # its maker died before it had its blocks
                else:
                    durable_writes.make_own(path)
        durable_writes.sync_directory(log.path / spec.path)


def _sweep(log: Arrays, head: int) -> None:
    """Delete chunk files past the head, and those wholly below base."""
    for spec in log.specs.values():
        stop = head + log.beyond(spec) if spec.is_raw else head
        for chunk in chunk_files.chunk_files(log.path, spec):
            start = chunk * spec.chunk_rows
            if start >= stop or start + spec.chunk_rows <= log.base:
                durable_writes.unlink(chunk_files.chunk_path(log.path, spec, chunk))
