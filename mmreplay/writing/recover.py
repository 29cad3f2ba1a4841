"""How a log begins to be written: reopened after a close, or recovered after a crash.

Invariant: killed at any point, by a signal or a power cut, each of these leaves a log that the
same code opens again without losing a row more. The order is that of docs/format.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FailedStoreError, MmreplayError
from mmreplay.format import compression, layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Array
from mmreplay.storage import chunk_files, priority_column, shard_file, tail_file
from mmreplay.storage.checkpoint import Checkpoint, CheckpointFile, check_rows
from mmreplay.storage.checksums import (
    Checksums,
    crc32c_of_file,
    damaged,
    rows_match,
    stored_checksum,
)
from mmreplay.storage.state_page import BASE, COMMITTED, TAIL_START, State
from mmreplay.system import checked_reads, durable_writes, platform
from mmreplay.system.disk_errors import FailedSyncError
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing import build_lane

__all__ = ["Live", "distrust_after", "recover", "reopen", "shard_start"]


@dataclasses.dataclass(slots=True, eq=False)
class Live:
    """A log that is open for writing.

    Attributes:
        metadata: attributes.mmreplay as they stand on disk.
        state: the state page.
        checkpoint: the two slots.
        tails: raw rows of the compressed arrays, mapped for writing, by path.
        head: rows committed.
        base: the oldest row kept.
        flushed: rows below it were durable before; chunk files from it on have to be synced.
        trusted: whether it was recovered from the page cache, and nothing is durable yet of what
            came after the last flush.
        lost: rows after the last flush that were not trusted, as far as the state page tells.
    """

    metadata: dict[str, Any]
    state: State
    checkpoint: CheckpointFile
    tails: dict[str, Array]
    head: int
    base: int
    flushed: int
    trusted: bool = False
    lost: int = 0


def reopen(
    path: AnyPath,
    metadata: dict[str, Any],
    specs: Mapping[str, ArraySpec],
    sums: Checksums,
    changes: Mapping[str, Any],
    *,
    capacity: int | None,  # noqa: ARG001 (as of `recover`)
    width: int | None,
    before: Callable[[], None],
) -> Live:
    """Open a closed log: everything private is built and durable before it is called open.

    `before` is called when nothing but that is left to do.
    """
    # Who closed it may have died before that was durable: open again, it would need its `.live`.
    durable_writes.sync_directory(path)
    durable_writes.remove_tree(path / ".live")
    _remove_litter(path)
    head: int = metadata["rows"]
    base = max(metadata["first"] - layout.context_rows(width), 0)
    tail_start = shard_start(specs, head)
    _check_last_files(path, specs, head)
    newest = [spec for spec in specs.values() if spec.is_raw and head]
    is_closed = True
    try:
        build_lane.build_live(
            path, metadata["uuid"], specs, head=head, tail_start=tail_start, base=base
        )
        state, checkpoint, tails = _map_live(path, metadata, specs)
        _unpack(path, specs, tails, tail_start, head)
        if isinstance(metadata.get("generator"), str):
            durable_writes.write_file(
                build_lane.generator_path(path), metadata["generator"].encode(errors="replace")
            )
        durable_writes.sync_tree(path / ".live")
        durable_writes.sync_directory(path)
        for spec in newest:  # what the last close gave back
            file = chunk_files.chunk_path(path, spec, (head - 1) // spec.chunk_rows)
            durable_writes.allocate(file, spec.chunk_bytes)
        before()
        is_closed = False
        metadata = build_lane.write_metadata(path, metadata, closed=False, **changes)
    except MmreplayError as error:
        if is_closed or not isinstance(error, FailedStoreError):  # else nobody knows what it is
            _close_again(path, newest, head)
        raise
    # Not before: killed in between, a closed lane would have files without a checksum. Recovery
    # forgets them as well, and no chunk file has been touched yet.
    sums.forget(head, tail_start)
    sums.sync()
    _sweep(path, specs, head, base)
    state.start(base=base, tail_start=tail_start, committed=head)
    return Live(metadata, state, checkpoint, tails, head, base, flushed=head)


def _close_again(path: AnyPath, newest: Sequence[ArraySpec], head: int) -> None:
    """Closed it was, and closed it stays: take away what this opening has made.

    A full disk needs the room; and of another user, `.live` would keep out whoever may write.
    """
    for spec in newest:
        if head % spec.chunk_rows:
            with contextlib.suppress(MmreplayError):
                chunk_files.zero_rows(path, spec, head // spec.chunk_rows, head % spec.chunk_rows)
    with contextlib.suppress(MmreplayError):
        durable_writes.remove_tree(path / ".live")


def _check_last_files(path: AnyPath, specs: Mapping[str, ArraySpec], head: int) -> None:
    """Make sure that those chunk files of a closed lane are whole that are about to change.

    Their checksums will be forgotten: the next close makes some that fit what is there.

    Raises:
        CorruptStoreError: one is missing, or does not match its checksum.
    """
    for spec in specs.values():
        if not head or not (spec.is_raw or head % spec.chunk_rows):
            continue  # a whole shard stays as it is
        chunk = (head - 1) // spec.chunk_rows
        file = chunk_files.chunk_path(path, spec, chunk)
        try:
            if spec.is_raw:
                sound = rows_match(path, spec, chunk, head)
            else:
                found = crc32c_of_file(file, shard_file.file_size(file, spec))
                sound = found == stored_checksum(path, spec, chunk)
        except FileNotFoundError as error:
            raise damaged(file, "missing") from error
        if not sound:
            raise damaged(file)


def _check_files(
    path: AnyPath, specs: Mapping[str, ArraySpec], rows: range, tail_start: int
) -> None:
    """Make sure that no chunk file of a lane that was left open is missing or cut.

    The newest would be filled up with zeros when it is mapped, which then count as rows.

    Raises:
        CorruptStoreError: one is.
    """
    for spec in specs.values():
        stop = rows.stop if spec.is_raw else min(rows.stop, tail_start)
        for chunk in range(rows.start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
            file = chunk_files.chunk_path(path, spec, chunk)
            try:
                size = file.lstat().st_size
            except FileNotFoundError as error:
                raise damaged(file, "missing") from error
            if spec.is_raw and size != spec.chunk_bytes:
                raise damaged(file, f"expected {spec.chunk_bytes:,} bytes, found {size:,}")


def recover(
    path: AnyPath,
    metadata: dict[str, Any],
    specs: Mapping[str, ArraySpec],
    sums: Checksums,
    changes: Mapping[str, Any],
    *,
    capacity: int | None,
    width: int | None,
) -> Live:
    """Open a log whose writer died, with its process or with the whole machine.

    `capacity` is its lane's, `width` that of its ticks, None if its rows are none.

    Raises:
        CorruptStoreError: the state, the checkpoint or a tail is missing or damaged.
    """
    if _is_as_made(path, metadata):
        return _begin_new(path, metadata, specs, changes)
    # What a killed process left may be only in the page cache: make durable what is about to be
    # trusted.
    durable_writes.sync_file(path / "zarr.json")
    _sync_or_distrust(path, path / ".live")
    try:
        state, checkpoint, tails = _map_live(path, metadata, specs)
    except FileNotFoundError as error:
        raise CorruptStoreError(
            f"{path}: expected .live with state, checkpoint and tails, as this lane was not "
            f"closed; {error.filename} is missing"
        ) from error
    sums_of = [layout.checksum_spec(name).path for name in specs]
    durable_writes.sync_all(directories=[path, *(path / name for name in (*specs, *sums_of))])
    best = checkpoint.best
    trusted = state.trusted(best)
    lost = 0 if trusted else state.rows_beyond(best.head)
    head, tail_start, base = _so_far(state, best, trusted=trusted)
    check_rows(path / ".live", base, head, capacity)
    rebuilt = not trusted and tail_start > head
    if rebuilt:
        tail_start = shard_start(specs, head)
    problems = [tail_file.tail_problem(specs, head, tail_start)]
    _refuse(path, problems + state.ahead_of(checkpoint) if trusted else problems)
    _check_files(path, specs, range(base, head), head if rebuilt else tail_start)
    if rebuilt:
        _unpack(path, specs, tails, tail_start, head)
    checkpoint.renew()
    if trusted:
        state.words[BASE] = base  # before files go: its last flush may not have come so far
        if (tail_start, base) != (best.tail_start, best.base):
            _replace_damaged(path, specs, checkpoint, head, tail_start, base)
    else:
        for spec in specs.values():
            if not spec.is_raw:
                durable_writes.sync_file(tail_file.tail_path(path, spec))
        state.distrust()  # or, after a death from here on, a checkpoint of its boot vouches for it
        checkpoint.write(head=head, tail_start=tail_start, base=base)
    _remove_litter(path)
    _sweep(path, specs, head, base)
    sums.forget(head, tail_start)
    sums.sync()  # a shard written anew may have its name before its checksum is durable
    with contextlib.suppress(MmreplayError, OSError):  # damaged priorities cost no row
        priority_column.trim(path, base, head, width)
    if any(metadata.get(name) != value for name, value in changes.items()):
        metadata = build_lane.write_metadata(path, metadata, **changes)
    if trusted:
        state.resume(base=base, tail_start=tail_start)
    else:
        state.start(base=base, tail_start=tail_start, committed=head)
    # Every kept chunk file counts as written since the last flush.
    return Live(metadata, state, checkpoint, tails, head, base, base, trusted=trusted, lost=lost)


def _is_as_made(path: AnyPath, metadata: Mapping[str, Any]) -> bool:
    """Whether a log is as it was when it got its name, all of it durable."""
    with contextlib.suppress(OSError, CorruptStoreError):
        best = CheckpointFile(path / ".live" / "checkpoint", metadata["uuid"]).best
        if best == Checkpoint(0, 0, 0, 1, platform.boot_id()):
            return State(path / ".live" / "state", writable=False).is_as_made()
    return False


def _begin_new(
    path: AnyPath,
    metadata: dict[str, Any],
    specs: Mapping[str, ArraySpec],
    changes: Mapping[str, Any],
) -> Live:
    """Open a log for the first time: there is nothing to recover."""
    state, checkpoint, tails = _map_live(path, metadata, specs)
    _remove_litter(path / ".live")
    # Before anything else changes: killed after that, it is recovered as any other.
    state.start(base=0, tail_start=0, committed=0)
    if any(metadata.get(name) != value for name, value in changes.items()):
        metadata = build_lane.write_metadata(path, metadata, **changes)
    return Live(metadata, state, checkpoint, tails, head=0, base=0, flushed=0)


def _sync_or_distrust(path: AnyPath, folder: AnyPath) -> None:
    """Make a folder of a lane durable; if that fails, it may not the next time: trust no state.

    Raises:
        FailedStoreError: an fsync failed.
    """
    try:
        durable_writes.sync_tree(folder)
    except FailedSyncError:
        with contextlib.suppress(OSError, CorruptStoreError):
            State(path / ".live" / "state", writable=True).distrust()
        raise


def distrust_after(path: AnyPath, later: AnyPath, store: str) -> None:
    """Trust the state of a `later` log only if that of the log at `path` is trusted.

    Neither is closed. Before any of them is opened: killed after that, the one at `path` would be
    trusted again.
    """
    with contextlib.suppress(OSError, CorruptStoreError):
        best = CheckpointFile(path / ".live" / "checkpoint", store).best
        if State(path / ".live" / "state", writable=False).trusted(best):
            return
    with contextlib.suppress(OSError, CorruptStoreError):
        State.make_own(later / ".live" / "state")  # of a copy by hard links it is the original's
        State(later / ".live" / "state", writable=True).distrust()


def _replace_damaged(
    path: AnyPath,
    specs: Mapping[str, ArraySpec],
    checkpoint: CheckpointFile,
    head: int,
    tail_start: int,
    base: int,
) -> None:
    """Write what only the state says into a checkpoint, as a flush would: the next ones copy it."""
    for spec in specs.values():
        _sync_or_distrust(path, path / spec.path)
    checkpoint.write(head=head, tail_start=tail_start, base=base)


def _so_far(state: State, best: Checkpoint, *, trusted: bool) -> tuple[int, int, int]:
    """The head, tail_start and base that a recovery goes on from."""
    if not trusted:
        return best.head, best.tail_start, best.base
    words = state.words
    return words[COMMITTED], max(words[TAIL_START], best.tail_start), max(words[BASE], best.base)


def _refuse(path: AnyPath, problems: list[str]) -> None:
    """Make sure that there is no problem with what `.live` says.

    Raises:
        CorruptStoreError: there is one.
    """
    text = next(filter(None, problems), "")
    if text:
        raise CorruptStoreError(f"{path / '.live'}: {text}; run `mmreplay verify`")


def shard_start(specs: Mapping[str, ArraySpec], head: int) -> int:
    """The head rounded down to a shard; 0 where nothing is compressed, and there is no tail."""
    lengths = [spec.chunk_rows for spec in specs.values() if not spec.is_raw]
    return head - head % lengths[0] if lengths else 0


def _map_live(
    path: AnyPath, metadata: dict[str, Any], specs: Mapping[str, ArraySpec]
) -> tuple[State, CheckpointFile, dict[str, Array]]:
    live = path / ".live"
    checkpoint = CheckpointFile(live / "checkpoint", metadata["uuid"])
    if not (live / "state").exists():  # lost with the power, before its name was durable
        State.create(live / "state")
        durable_writes.sync_all([live / "state"], [live])
    State.make_own(live / "state")
    tails = {
        spec.path: tail_file.map_tail(path, spec, writable=True)
        for spec in specs.values()
        if not spec.is_raw
    }
    return State(live / "state", writable=True), checkpoint, tails


def _unpack(
    path: AnyPath, specs: Mapping[str, ArraySpec], tails: Mapping[str, Array], start: int, stop: int
) -> None:
    """Rows [start, stop) of the shard that begins at `start` into the tail."""
    if stop <= start:
        return
    for name, tail in tails.items():
        spec = specs[name]
        file = chunk_files.chunk_path(path, spec, start // spec.chunk_rows)
        shard = shard_file.Shard(file, spec, compression.make_codec(spec.codec or {}))
        buffer = np.empty(spec.inner_bytes, np.uint8)
        for inner in range(-(-(stop - start) // spec.inner_rows) * spec.width):
            rows = tail_file.inner_rows(spec, tail, start, inner)
            shard.decode(inner, buffer)
            rows[...] = buffer.view(spec.dtype).reshape(rows.shape)


def _remove_litter(path: AnyPath) -> None:
    for folder, _, names in checked_reads.walk(path):
        for name in names:
            if name.endswith(".tmp"):
                durable_writes.unlink(folder / name)


def _sweep(path: AnyPath, specs: Mapping[str, ArraySpec], head: int, base: int) -> None:
    """Delete chunk files past the head, and those wholly below base."""
    for spec in specs.values():
        for chunk in chunk_files.chunk_files(path, spec):
            start = chunk * spec.chunk_rows
            if start >= head or start + spec.chunk_rows <= base:
                durable_writes.unlink(chunk_files.chunk_path(path, spec, chunk))
