"""One lane of a damaged store: rebuild what can be rebuilt, and make a new lane of what is sound.

Invariant: the damaged lane is only read; no row with a finding is copied.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

from mmreplay.episode_index import floor_row
from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError, StoreNotFoundError
from mmreplay.format import consolidated, layout, parse
from mmreplay.format.layout import FINALS
from mmreplay.maintenance.copy_lane import copy_lane, empty_lane
from mmreplay.maintenance.repair.damage import Damage, Span
from mmreplay.maintenance.repair.later_rows import append_rows
from mmreplay.maintenance.repair.rebuilt_files import rebuild_index
from mmreplay.maintenance.verify.documents import OWN_DIGEST, root_problems
from mmreplay.maintenance.verify.lane import read_state
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.whole_store import verify
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.store import Store
from mmreplay.storage.checkpoint import PAGE_BYTES
from mmreplay.storage.lane_metadata import read_document
from mmreplay.storage.state_page import State
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath

__all__ = ["LaneRepair", "n_transitions", "open_damaged", "read_own", "rebuild_lane"]


@dataclasses.dataclass(frozen=True, slots=True)
class LaneRepair:
    """What became of one lane.

    Attributes:
        lane: its directory's name; empty in a store of one lane.
        kept: transitions, of those that were there before.
        lost: transitions, as far as they can be counted.
        beyond: sound ones among the lost, which ``skip_damaged`` would keep.
        damaged: [start, stop) of the rows that were found damaged.
        renumbered: whether transitions that were kept have other ids now.
        missing: whether the lane was gone or unreadable; an empty one replaces it, so that ids in
            later lanes stay.
        untrusted: rows after the last flush of a writer that died, which were not kept, as they
            cannot be trusted here or after a restart; not counted in `lost`.
    """

    lane: str
    kept: int
    lost: int
    beyond: int
    damaged: list[Span]
    renumbered: bool
    missing: bool = False
    untrusted: int = 0

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return {**dataclasses.asdict(self), "damaged": [list(span) for span in self.damaged]}


def rebuild_lane(damage: Damage, name: str, target: AnyPath, *, skip_damaged: bool) -> LaneRepair:
    """Make a closed lane of the rows before the damage; `skip_damaged` appends later ones."""
    reader = damage.reader
    stretches = [*damage.stretches()]
    stop = stretches[0][1] if stretches and stretches[0][0] == reader.base else 0
    if reader.base and stop < reader.base + layout.CONTEXT_ROWS:
        stop = 0  # nothing that could be sampled
    later = [span for span in stretches if span[0] >= stop]
    if stop > 0:
        sums, n_finals = damage.wrong_sums, damage.n_finals
        copy_lane(reader, target, stop, n_finals=n_finals, wrong_sums=sums)
    else:
        empty_lane(target, reader)
    if skip_damaged and later:
        append_rows(target, damage, later)
    first = max(reader.metadata["first"], floor_row(reader.base))
    kept = n_transitions([target])
    lost = max(damage.n_transitions([(first, reader.head)]) - kept, 0)
    beyond = damage.n_transitions((max(start, first), end) for start, end in later)
    return LaneRepair(
        name,
        kept,
        lost,
        0 if skip_damaged else min(beyond, lost),
        damage.found(),
        skip_damaged and bool(later),
        untrusted=reader.rows.untrusted,
    )


def n_transitions(lanes: Sequence[AnyPath]) -> int:
    """How many can be sampled."""
    if not lanes:
        return 0
    with Store(lanes) as store:
        return len(store)


# ---------------------------------------------------------------- what can be made again


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
    text = ""
    # Where a document and its consolidated copy differ, the one that fits the rows is right.
    for trust_copy in (False,) if is_readable else (False, True):
        path = spare.with_name(f"{spare.name}-{int(trust_copy)}")
        try:
            _share(lane, path, findings, trust_copy=trust_copy)
            found = verify(str(path)).findings
            damage = Damage(LaneReader(path, own_documents=True), found)
            if damage.index:
                unknown = rebuild_index(damage)
                found = verify(str(path)).findings
                damage = Damage(LaneReader(path, own_documents=True), found, unknown)
            opened.append((len(found), damage))
        except (CorruptStoreError, FormatError) as error:
            text = str(error).replace(str(path), str(lane)).removeprefix(f"{lane}: ")
    if opened:
        return min(opened, key=lambda one: one[0])[1]
    if "repair again" not in text:
        text = (
            f"cannot be repaired: {text}; put what is lost or damaged back from a backup or a "
            f"snapshot, and repair again"
        )
    raise CorruptStoreError(f"{lane}: {text}")


def _share(
    lane: AnyPath, target: AnyPath, findings: Sequence[Finding], *, trust_copy: bool
) -> None:
    """Link each file of a lane, except damaged ones that can be written again.

    Unreadable documents, with `trust_copy` all, come from the copy in the lane's zarr.json. A
    damaged state page is replaced by zeros, so that the checkpoint counts.
    """
    own, document = read_own(lane)
    copy = consolidated.find_copy(document, str(lane))
    _share_tree(lane, target)
    for name, one in (copy or {}).items():
        file = target / name / "zarr.json"
        if trust_copy or not _is_json(file):
            durable_writes.make_directory(target / name)
            durable_writes.write_file(file, layout.dump(one), durable=False)
    if any(finding.message.startswith("name:") for finding in findings):
        own.pop("name", None)  # another lane has it
    durable_writes.write_file(target / "zarr.json", layout.group_json(own), durable=False)
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


def read_own(path: AnyPath) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes and document of a store or lane; CorruptStoreError if they are damaged."""
    where = str(path / "zarr.json")
    try:
        data = read_document(path)
        document = parse.parse_json(data, where)
        own = parse.root_attributes(document, where)
    except (CorruptStoreError, FormatError, StoreNotFoundError) as error:
        text = str(error).removeprefix(f"{where}: ").removeprefix(f"{path}: ")
    else:
        text = next((one for one in root_problems(data) if one.startswith(OWN_DIGEST)), "")
        if not text:
            return own, document
    raise CorruptStoreError(
        f"{path}: cannot be repaired: zarr.json: {text}; put it back from a backup or a snapshot, "
        f"and repair again, or pack what can still be opened (`mmreplay pack`)"
    )


def _share_tree(source: AnyPath, target: AnyPath) -> None:
    durable_writes.make_directory(target)
    for name in checked_reads.names(source):
        path = source / name
        if path.is_dir() and not path.is_symlink():
            _share_tree(path, target / name)
        else:
            durable_writes.share_file(path, target / name)


def _is_json(file: AnyPath) -> bool:
    try:
        parse.parse_json(checked_reads.read_bytes(file, layout.MAX_METADATA_BYTES), str(file))
    except (MmreplayError, OSError):
        return False
    return True
