"""Opens a damaged lane, or a copy in which its documents, state pages and index are rebuilt.

Invariant: the damaged lane is only read. Files are replaced in a copy that only this repair uses,
and lose their checksums, which closing computes; nothing is guessed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError, StoreNotFoundError
from mmreplay.format import layout, parse, plan
from mmreplay.format.layout import FINALS, ArraySpec
from mmreplay.ids import Ids
from mmreplay.maintenance.repair.damage import Damage, Span, blocks, gaps
from mmreplay.maintenance.verify.documents import OWN_DIGEST, root_problems
from mmreplay.maintenance.verify.lane import read_state
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.whole_store import verify
from mmreplay.reading.lane_reader import LaneReader, LogReader
from mmreplay.storage import chunk_files
from mmreplay.storage.lane_metadata import read_document
from mmreplay.storage.state_page import PAGE_BYTES, State
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath

_BLOCK_ROWS = 1 << 16
_MOST_FILES = 10_000


def open_damaged(lane: AnyPath, findings: Sequence[Finding], spare: AnyPath) -> Damage:
    """Open a lane, or a copy at `spare` in which documents, state pages and the index are rebuilt.

    Raises CorruptStoreError if it cannot be opened.
    """
    is_readable = not any(one.file.endswith("zarr.json") or ".live" in one.file for one in findings)
    if is_readable:
        with contextlib.suppress(MmreplayError):
            damage = Damage(LaneReader(lane), findings)
            if not damage.index:
                return damage
    opened: list[tuple[int, Damage]] = []
    own, document = read_own(lane)
    if any(finding.message.startswith("name:") for finding in findings):
        own.pop("name", None)  # another lane has it
    text = ""
    # Where a document and its consolidated copy differ, the one that fits the rows is right.
    for trust_copy in (False,) if is_readable else (False, True):
        path = spare.with_name(f"{spare.name}-{int(trust_copy)}")
        try:
            _share(lane, path, findings)
            _take_copies(path, own, document, all_of_them=trust_copy)
            found = verify(str(path)).findings
            damage = Damage(LaneReader(path, own_documents=True), found)
            if damage.index:
                unknown = _rebuild_index(damage)
                found = verify(str(path)).findings
                damage = Damage(LaneReader(path, own_documents=True), found, unknown)
            opened.append((len(found), damage))
        except (CorruptStoreError, FormatError) as error:
            text = str(error).replace(str(path), str(lane)).removeprefix(f"{lane}: ")
    if opened:
        return min(opened, key=lambda one: one[0])[1]
    raise _refusal(lane, text)


def _refusal(path: AnyPath, text: str) -> CorruptStoreError:
    return CorruptStoreError(
        f"{path}: cannot be repaired: {text}; put what is lost or damaged back from a backup or a "
        f"snapshot, and repair again, or pack what can still be opened (`mmreplay pack`)"
    )


def read_own(path: AnyPath) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes and document of a store or lane; CorruptStoreError if they are damaged.

    FormatError if they are sound, and of another format.
    """
    where = str(path / "zarr.json")
    document: dict[str, Any] = {}
    try:
        data = read_document(path)
        document = parse.parse_json(data, where)
        own = parse.root_attributes(document, where)
    except (CorruptStoreError, FormatError, StoreNotFoundError) as error:
        if parse.is_of_another_format(document):
            raise
        text = str(error).removeprefix(f"{where}: ").removeprefix(f"{path}: ")
    else:
        text = next((one for one in root_problems(data) if one.startswith(OWN_DIGEST)), "")
        if not text:
            return own, document
    raise _refusal(path, f"zarr.json: {text}")


def _share(lane: AnyPath, target: AnyPath, findings: Sequence[Finding]) -> None:
    """Link each file of a lane; zeros replace a damaged state page: then the checkpoint counts."""
    share_tree(lane, target)
    damaged = {finding.file.removeprefix(f"{finding.lane}/") for finding in findings}
    for log, state in ((target, ".live/state"), (target / FINALS, f"{FINALS}/.live/state")):
        if not (log / ".live").is_dir():
            continue
        if state in damaged or read_state(log) is None:
            zeros = bytes(PAGE_BYTES)
            durable_writes.write_file(target / state, zeros, durable=False, overwritten=True)
        else:  # a page names its directory
            durable_writes.unlink(target / state)
            State.copy(lane / state, target / state)


def share_tree(source: AnyPath, target: AnyPath) -> None:
    """Make a directory whose files are second names of those of another."""
    durable_writes.make_directory(target)
    for name in checked_reads.names(source):
        path = source / name
        if path.is_dir() and not path.is_symlink():
            share_tree(path, target / name)
        else:
            durable_writes.share_file(path, target / name)


def _take_copies(
    lane: AnyPath, own: dict[str, Any], document: dict[str, Any], *, all_of_them: bool
) -> None:
    """Replace unreadable documents, or all, by their copies in the lane's own document."""
    for name, one in (parse.find_copy(document, "zarr.json") or {}).items():
        file = lane / name / "zarr.json"
        with contextlib.suppress(MmreplayError, OSError):
            parse.parse_json(checked_reads.read_bytes(file, layout.MAX_METADATA_BYTES), "")
            if not all_of_them:
                continue
        durable_writes.make_directory(lane / name)
        durable_writes.write_file(file, layout.dump(one), durable=False)
    durable_writes.write_file(lane / "zarr.json", layout.group_json(own), durable=False)
    _renew_columns(lane, own)


def _renew_columns(lane: AnyPath, own: dict[str, Any]) -> None:
    """Let the values of derived columns be 0 whose documents are lost: they cost no row."""
    schema = parse.schema_from_json(own["schema"], str(lane))
    planned = plan.plan_lane(schema, own["environments"], own["capacity"]).rows
    for spec in (spec for spec in planned.values() if spec.may_change):
        for one in (spec, layout.checksum_spec(spec.path)):
            file = lane / one.path / "zarr.json"
            with contextlib.suppress(MmreplayError, OSError):
                data = checked_reads.read_bytes(file, layout.MAX_METADATA_BYTES)
                parse.parse_array(data, one.path, str(file))
                continue
            durable_writes.remove_tree(lane / one.path)
            durable_writes.make_directory(lane / one.path)
            document = layout.array_json(one, own["rows"])
            durable_writes.write_file(file, document, durable=False)


def _rebuild_index(damage: Damage) -> list[Span]:
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
