"""Rebuilds the index of final observations from the steps.

Invariant: files are replaced in a copy of the lane that only this repair uses, and lose their
checksums, which closing computes; nothing is guessed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import numpy as np

from mmreplay.errors import MmreplayError
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.ids import Ids
from mmreplay.maintenance.repair.damage import INDEX, Damage, Span, gaps
from mmreplay.reading.log_reader import LogReader
from mmreplay.storage import chunk_files
from mmreplay.system import checked_reads, durable_writes

__all__ = ["rebuild_index"]

_MOST_FILES = 10_000


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


def rebuild_index(damage: Damage) -> list[Span]:
    """Rebuild damaged chunks of `finals/id` and `first` from `step` and `ends`.

    Episodes that end before the first damaged row are the first final observations, if none was
    evicted; those at the end of a closed lane are the last ones. Within a row they are in the order
    in which the episodes ended, which only `id` says.

    Returns:
        Rows of damaged final observations whose episodes are unknown.
    """
    reader, log = damage.reader, damage.reader.finals
    damaged = [rows for _, rows in damage.index]
    known = _front_and_back(damage)
    lost = [(log.base, log.head)]
    for start, ids, _ in known:
        lost = [one for span in lost for one in gaps([(start, start + ids.size)], *span)]
    here = [(max(a, start), min(b, stop)) for a, b in lost for start, stop in damaged if start < b]
    out = [(start, stop) for start, stop in here if start < stop]
    for start, ids, firsts in known:
        out += _order(damage, start, ids, firsts, damaged)
    first_damaged = min((start for start, _ in damage.rows), default=reader.head)
    beyond = min(first_damaged, reader.head if reader.is_closed else reader.head - 1) * reader.n
    for path, (start, stop) in damage.index:
        spec = log.specs[path]
        chunks = range(start // spec.chunk_rows, -(-stop // spec.chunk_rows))
        for chunk in chunks[:_MOST_FILES]:
            begin = chunk * spec.chunk_rows
            rows = np.zeros(spec.chunk_rows, spec.dtype)
            rows[max(log.base - begin, 0) : log.head - begin] = beyond
            for first, *values in known:
                one = values[INDEX.index(path)]
                low, high = max(first, begin), min(first + one.size, begin + spec.chunk_rows)
                if low < high:
                    rows[low - begin : high - begin] = one[low - first : high - first]
            _replace(log, spec, chunk, rows.tobytes())
    return out


def _front_and_back(damage: Damage) -> list[tuple[int, Ids, Ids]]:
    """(first row, ids, first steps) of the final observations of sound rows at each end."""
    reader, log = damage.reader, damage.reader.finals
    head = reader.head if reader.is_closed else max(reader.head - 1, 0)
    stretches = [*damage.stretches(reader.base, head)]
    out: list[tuple[int, Ids, Ids]] = []
    if stretches and stretches[-1][1] == head and reader.is_closed:
        ids, firsts = _ended(damage, stretches[-1])
        n_there = min(ids.size, log.head - log.base)
        out.append((log.head - n_there, ids[ids.size - n_there :], firsts[ids.size - n_there :]))
        stretches.pop()
    if stretches and stretches[0][0] == reader.base == 0:
        ids, firsts = _ended(damage, stretches[0])
        stop = out[0][0] if out else log.head
        out.insert(0, (0, ids[:stop], firsts[:stop]))
    return out


def _ended(damage: Damage, rows: Span) -> tuple[Ids, Ids]:
    """The last and the first steps of the episodes that end in these rows, ascending."""
    n, found = damage.reader.n, [np.empty((2, 0), np.int64)]
    for start, stop in damage.blocks(*rows):
        step = damage.read("step", start, stop).reshape(-1)
        ended = np.flatnonzero((damage.read("ends", start, stop).reshape(-1) != 0) & (step > 0))
        ids = ended + start * n
        found.append(np.stack((ids, ids - (step[ended] - 1) * n)))
    ids, firsts = np.concatenate(found, 1)
    return ids, firsts


def _order(
    damage: Damage, start: int, ids: Ids, firsts: Ids, damaged: Iterable[Span]
) -> list[Span]:
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
        elif any(a < start + high and start + low < b for a, b in damaged):
            out.append((start + low, start + high))
    return out
