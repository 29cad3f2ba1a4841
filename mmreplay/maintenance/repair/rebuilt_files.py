"""Rebuilds the index of final observations from the steps.

Invariant: files are replaced in a copy of the lane that only this repair uses, and lose their
checksums, which closing computes; nothing is guessed.
"""

from __future__ import annotations

import contextlib

import numpy as np

from mmreplay.errors import MmreplayError
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.maintenance.repair.damage import Damage, Span, blocks, gaps
from mmreplay.reading.lane_reader import LogReader
from mmreplay.storage import chunk_files
from mmreplay.system import checked_reads, durable_writes

__all__ = ["rebuild_index"]

_BLOCK_ROWS = 1 << 16
_MOST_FILES = 10_000


def rebuild_index(damage: Damage) -> list[Span]:
    """Rebuild damaged chunks of `finals/id` and `first`; returns rows that stay unknown."""
    reader, log = damage.reader, damage.reader.finals
    damaged = [span for _, span in damage.index]
    start, ids, firsts = _known(damage)
    unknown = _order(damage, start, ids, firsts)
    unknown += gaps([(start, start + ids.size)], log.base, log.head)
    first_damaged = min((row for row, _ in damage.found()), default=reader.head)
    beyond = min(first_damaged, reader.head if reader.is_closed else reader.head - 1) * reader.n
    for path, span in damage.index:
        spec = log.specs[path]
        values = ids if path == "id" else firsts
        chunks = range(span[0] // spec.chunk_rows, -(-span[1] // spec.chunk_rows))
        for chunk in chunks[:_MOST_FILES]:
            begin = chunk * spec.chunk_rows
            rows = np.zeros(spec.chunk_rows, spec.dtype)
            rows[max(log.base - begin, 0) : log.head - begin] = beyond
            low, high = max(start, begin), min(start + ids.size, begin + spec.chunk_rows)
            if low < high:
                rows[low - begin : high - begin] = values[low - start : high - start]
            _replace(log, spec, chunk, rows.tobytes())
    lost = [(max(a, low), min(b, high)) for a, b in unknown for low, high in damaged]
    return [span for span in lost if span[0] < span[1]]


def _known(damage: Damage) -> tuple[int, Ids, Ids]:
    """(first row, ids, first steps) of the final observations that follow from the steps.

    They are those of the rows before the first one without `step` or `ends`, if none was evicted,
    or of all rows of a closed lane.
    """
    reader, log, n = damage.reader, damage.reader.finals, damage.reader.n
    head = reader.head if reader.is_closed else max(reader.head - 1, 0)
    stretch = next(gaps(damage.found("step", "ends"), reader.base, head), (head, head))
    found = [np.empty((2, 0), np.int64)]
    for start, stop in blocks([stretch], _BLOCK_ROWS):
        step = damage.read("step", start, stop).reshape(-1)
        ended = np.flatnonzero((damage.read("ends", start, stop).reshape(-1) != 0) & (step > 0))
        ids = ended + start * n
        found.append(np.stack((ids, ids - (step[ended] - 1) * n)))
    ids, firsts = np.concatenate(found, 1)
    if reader.is_closed and stretch == (reader.base, head):
        n_there = min(ids.size, log.head - log.base)
        return log.head - n_there, ids[ids.size - n_there :], firsts[ids.size - n_there :]
    n_there = log.head if stretch[0] == reader.base == 0 else 0
    return 0, ids[:n_there], firsts[:n_there]


def _order(damage: Damage, start: int, ids: Ids, firsts: Ids) -> list[Span]:
    """Order those of each row as they are stored; returns the rows where that is unknown."""
    log, n = damage.reader.finals, damage.reader.n
    spec, stored = log.specs["id"], np.full(ids.size, -1)
    for first in range(start - start % spec.chunk_rows, start + ids.size, spec.chunk_rows):
        low, high = max(first, start), min(first + spec.chunk_rows, start + ids.size)
        with contextlib.suppress(MmreplayError, OSError):
            stored[low - start : high - start] = chunk_files.read_rows(log, spec, low, high)
    out: list[Span] = []
    for row in np.unique(ids[stored != ids] // n).tolist():
        low, high = np.searchsorted(ids // n, (row, row + 1)).tolist()
        begins = dict(zip(ids[low:high].tolist(), firsts[low:high].tolist(), strict=True))
        order = stored[low:high].tolist()
        left = begins.keys() - set(order)
        if len(left) == 1 and len(set(order) & begins.keys()) == len(order) - 1:
            odd = next(k for k, one in enumerate(order) if one not in begins or one in order[:k])
            order[odd] = left.pop()
        if not left:
            ids[low:high] = order
            firsts[low:high] = [begins[one] for one in order]
        else:
            out.append((start + low, start + high))
    return out


def _replace(log: LogReader, spec: ArraySpec, chunk: int, data: bytes) -> None:
    """Write a chunk file and clear its checksum."""
    durable_writes.write_file(chunk_files.chunk_path(log.path, spec, chunk), data, durable=False)
    sums = layout.checksum_spec(spec.path)
    file, entry = divmod(chunk, sums.chunk_rows)
    where = chunk_files.chunk_path(log.path, sums, file)
    with contextlib.suppress(MmreplayError, FileNotFoundError):  # it is made again as well
        values = bytearray(checked_reads.read_bytes(where, sums.chunk_bytes))
        values[entry * sums.row_bytes : (entry + 1) * sums.row_bytes] = bytes(sums.row_bytes)
        durable_writes.write_file(where, bytes(values), durable=False)
