"""`repair`: makes a sound store of what is sound in a damaged one.

Invariant: no byte of the damaged store is changed. The new store is built beside it, verified, and
takes its name when it is whole and durable; the damaged one stays under another name. Interrupted
at any point, the store is as before or as it should become, and the same call continues.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmreplay.errors import (
    CorruptStoreError,
    LockedError,
    MmreplayError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.format import layout, parse, plan
from mmreplay.maintenance.copy_lane import close_lane, lock_all
from mmreplay.maintenance.repair.damage import Damage, open_damaged, read_own
from mmreplay.maintenance.repair.lane import LaneRepair, n_transitions, rebuild_lane
from mmreplay.maintenance.repair.swap import RepairSite
from mmreplay.maintenance.verify.report import Finding, Report, as_json
from mmreplay.maintenance.verify.whole_store import verify
from mmreplay.storage.changing_column import lock_columns
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import checked_reads, durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.build_lane import build_lane

Progress = Callable[[int, int], None]

_MOST_MISSING = 1_000  # lanes; each that is missing gets an empty one in its place


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did.

    Attributes:
        changed: whether there was anything to do.
        before: where the damaged store is now; None if nothing was damaged.
        kept: transitions, over all lanes, that are in the store now.
        findings: what `verify` had found.
        lanes: what became of each lane; empty if nothing was damaged.
        untrusted: rows of a store that a crash left open that were not kept; see `Report`.
    """

    path: str
    changed: bool
    before: str | None
    kept: int
    findings: list[Finding]
    lanes: list[LaneRepair]
    untrusted: int = 0

    @property
    def lost(self) -> int:
        """Transitions lost, over all lanes, as far as they can be counted."""
        return sum(lane.lost for lane in self.lanes)

    @property
    def beyond(self) -> int:
        """Sound ones among the lost, which ``skip_damaged`` would keep."""
        return sum(lane.beyond for lane in self.lanes)

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return as_json(self) | {"lost": self.lost, "beyond": self.beyond}


def repair(
    path: str | os.PathLike[str], *, skip_damaged: bool = False, progress: Progress | None = None
) -> Repair:
    """Make a store sound again; one that is sound is left alone, one left by a crash is closed.

    Each lane keeps its rows up to the first damaged one, with their ids. The damaged store stays
    unchanged beside the repaired one as ``NAME.damaged``, and sound files are shared. If it is
    interrupted, call it again.

    Args:
        path: the store, which no process may be writing.
        skip_damaged: also keep what is sound after the damage, with new ids: an episode with damage
            inside becomes one before it, truncated, and one after it.
        progress: called with bytes read and bytes in all, about.

    Raises:
        StoreNotFoundError, FormatError: there is no store, or a part of it may not be read.
        SchemaError: the path is a part of a store, or its name is too long.
        LockedError: it is being written, or a column of it updated.
        CorruptStoreError: the damage leaves nothing to start from.
        DiskFullError, FailedStoreError: no room, or a write failed; nothing was changed.
    """
    site = RepairSite(place_of(user_paths.as_path(path)))
    root = site.store
    with site.naming_the_store(), contextlib.ExitStack() as begun, contextlib.ExitStack() as locked:
        if is_left := site.is_left():
            begun.enter_context(site)
        if checked_reads.identity(root) is None:
            read_metadata(root)  # raises the error
        lanes = lanes_of(root)
        stamps, report = _stamps(lanes), verify(str(root), _part(progress, 0))
        if report.sound and report.state not in {"live", "crashed"}:  # also on a read-only disk
            return Repair(str(root), False, None, n_transitions(lanes), [], [])
        if not is_left:
            begun.enter_context(site)
        held = lock_all([*lanes, root], locked)
        if stamps != _stamps(lanes):
            raise _written(root)
        if report.sound:
            locked.close()
            changed, kept = _close(root, lanes), n_transitions(lanes)
            return Repair(str(root), changed, None, kept, [], [], report.untrusted)
        for lane in lanes:
            lock_columns(lane, locked)  # updates would go to the damaged store
        try:
            made = _rebuild(site, report, progress, skip_damaged=skip_damaged)
        except EvictedError as error:
            raise _written(root) from error
        before = str(site.swap(held[root].directory))
        kept, untrusted = sum(one.kept for one in made), sum(one.untrusted for one in made)
        return Repair(str(root), True, before, kept, report.findings, made, untrusted)


def _written(root: AnyPath) -> LockedError:
    return LockedError(f"{root}: it was written while it was being repaired; end its writer first")


def place_of(path: Path) -> Path:
    """The store's own path, with a link to it resolved."""
    root = path
    with contextlib.suppress(OSError):  # a name that nothing can have
        if path.name in ("", "..") or path.is_symlink():
            root = Path(os.path.realpath(path))
    if not root.name:
        raise StoreNotFoundError(f"{path}: has no directory above it, so it is not a store")
    store = None
    if root.name.startswith("lane-") or root.name == layout.FINALS:
        with contextlib.suppress(MmreplayError, OSError):
            store = read_metadata(root.parent)
    if store is not None:
        raise SchemaError(f"{path}: this is a part of the store {root.parent}; repair that")
    return root


def _part(progress: Progress | None, part: int) -> Progress | None:
    """Progress of the first or the second time that all is read."""
    if progress is None:
        return None
    return lambda done, total: progress(part * total + done, 2 * total)


def _close(root: AnyPath, lanes: Sequence[AnyPath]) -> bool:
    """Close sound lanes that a crash left open; whether there were any."""
    left_open = [lane for lane in lanes if not read_metadata(lane)["closed"]]
    if left_open:
        durable_writes.sync_name(root)
    for lane in left_open:
        close_lane(lane)
    return bool(left_open)


def _stamps(lanes: Sequence[AnyPath]) -> list[Any]:
    """What changes when a writer opens or closes a lane."""
    return [checked_reads.identity(lane / "zarr.json") for lane in lanes]


def lanes_of(root: AnyPath) -> list[AnyPath]:
    """The lanes of a store; the store, if it is of one."""
    lanes = [root / name for name in layout.lane_names(checked_reads.names(root))]
    lanes = [lane for lane in lanes if lane.is_dir() and not lane.is_symlink()]
    if lanes:
        return lanes
    with contextlib.suppress(MmreplayError):
        if read_metadata(root)["kind"] == "lanes":
            return []
    return [root]


def _rebuild(
    site: RepairSite, report: Report, progress: Progress | None, *, skip_damaged: bool
) -> list[LaneRepair]:
    """Build a store of what is sound at the site; returns what became of each lane."""
    root = site.store
    lanes, own = lanes_of(root), read_own(root)
    lost: dict[str, str] = {}
    if own["kind"] == "lanes":
        durable_writes.make_directory(site.new)
        durable_writes.write_file(site.new / "zarr.json", layout.group_json(own))
        lost = _missing(root, [lane.name for lane in lanes])
    readable: dict[str, Damage] = {}
    for lane in lanes:
        name = "" if lane == root else lane.name
        findings = [finding for finding in report.findings if finding.lane == name]
        try:
            readable[name] = open_damaged(root, lane, findings)
        except CorruptStoreError as error:
            lost[name] = str(error)
    if lost and not readable:
        raise CorruptStoreError(next(iter(lost.values())))
    made = [_add_empty(site.new / name, name, own) for name in lost]
    made += [
        rebuild_lane(damage, name, site.new / name, skip_damaged=skip_damaged)
        for name, damage in readable.items()
    ]
    durable_writes.sync_tree(site.new)
    found = verify(str(site.new), _part(progress, 1)).findings
    if found:
        raise CorruptStoreError(
            f"{root}: cannot be repaired: what is left would not be sound: {found[0]}"
        )
    return sorted(made, key=lambda one: one.lane)


def _missing(root: AnyPath, names: Sequence[str]) -> dict[str, str]:
    """A message for each lane that is missing though there are later ones."""
    last = max((int(name[5:]) for name in names), default=-1)
    if last - len(names) > _MOST_MISSING:
        raise CorruptStoreError(
            f"{root}: cannot be repaired: expected lanes 0 to {last:,}, found {len(names):,}"
        )
    expected = map(layout.lane_name, range(last + 1))
    return {name: f"{root / name}: missing" for name in expected if name not in names}


def _add_empty(target: AnyPath, name: str, own: Mapping[str, Any]) -> LaneRepair:
    """An empty lane for a missing one: the number of a lane is part of its rows' ids."""
    schema = parse.schema_from_json(own["schema"], str(target))
    specs = plan.plan_from_layout(schema, own["layout"], str(target))
    planned = plan.plan_lane(plan.with_codecs(schema, specs), None, own["capacity"], in_group=True)
    kept = {key: own[key] for key in ("capacity", "padding", "env", "versions") if key in own}
    build_lane(target, schema, dataclasses.replace(planned, rows=specs), None, kept)
    close_lane(target)
    return LaneRepair(name, 0, 0, 0, [], renumbered=False, missing=True)
