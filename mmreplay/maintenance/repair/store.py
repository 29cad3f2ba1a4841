"""`repair`: a sound store of what is sound in a damaged one.

Invariant: no byte of the damaged store is changed. What is sound of it is put together beside it,
verified, and takes its name when it is whole and durable; the damaged one stays under another
name. Interrupted at any point, the store is there as it was or as it shall be, and the same call
goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from mmreplay.format.columns import lane_columns
from mmreplay.maintenance.copy_lane import KEPT, empty_lane
from mmreplay.maintenance.repair.attributes import read_attributes, refuse_newer
from mmreplay.maintenance.repair.lane import DamagedLane, LaneRepair
from mmreplay.maintenance.repair.swap import RepairSite, newest_aside
from mmreplay.maintenance.repair.vector import DamagedVector, is_vector
from mmreplay.maintenance.verify.report import Finding, Report
from mmreplay.maintenance.verify.store import DIFFERS, verify
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import read_metadata, read_specs
from mmreplay.system import checked_reads, durable_writes, locks, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.background import Background
from mmreplay.writing.lane_files import holder_of
from mmreplay.writing.vector_writer import VectorWriter
from mmreplay.writing.writer import Writer

__all__ = ["LaneRepair", "Repair", "repair"]

Progress = Callable[[int, int], None]

_LOG = logging.getLogger("mmreplay")
_ATTEMPTS = 20
_MOST_MISSING = 1_000  # lanes; each that is missing gets an empty one in its place


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did.

    Attributes:
        path: the store.
        changed: whether there was anything to do.
        before: where the damaged store is now; None if nothing was damaged.
        kept: rows, over all lanes, that are in the store now.
        findings: what `verify` had found.
        lanes: what became of each lane; empty if nothing was damaged.
        untrusted: rows of a store that a crash left open that were not kept; see `Report`.
        notes: what is not what it was, or may not be, though no row is lost by it: attributes that
            nothing tells any more, for example. A sentence each, which names the file.
        beyond_aside: rows of `aside` that ``skip_damaged`` would keep there and that are not here;
            looked up where it was asked for, and the store was sound.
    """

    path: str
    changed: bool
    before: str | None
    kept: int
    findings: list[Finding]
    lanes: list[LaneRepair]
    untrusted: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)
    beyond_aside: int = 0

    @property
    def lost(self) -> int:
        """Rows lost, over all lanes, as far as they can be counted."""
        return sum(lane.lost for lane in self.lanes)

    @property
    def left_out(self) -> int | None:
        """Transitions left out of ticks that are kept; None if some rows are no ticks."""
        found = [lane.left_out for lane in self.lanes]
        numbers = [one for one in found if one is not None]
        return sum(numbers) if numbers and len(numbers) == len(found) else None

    @property
    def at_least(self) -> bool:
        """Whether more rows than `lost` may be lost, as nothing tells how many there were."""
        return any(lane.at_least for lane in self.lanes)

    @property
    def aside(self) -> str | None:
        """Where the store from before the last repair is now, this one or an earlier one."""
        found = newest_aside(Path(self.path))
        return None if found is None else str(found)

    @property
    def beyond(self) -> int:
        """Rows among the lost ones that ``skip_damaged`` would keep."""
        return sum(lane.beyond for lane in self.lanes)

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return {
            "path": self.path,
            "changed": self.changed,
            "before": self.before,
            "kept": self.kept,
            "lost": self.lost,
            "at_least": self.at_least,
            "beyond": self.beyond,
            "left_out": self.left_out,
            "untrusted": self.untrusted,
            "beyond_aside": self.beyond_aside,
            "notes": self.notes,
            "findings": [finding.to_json() for finding in self.findings],
            "lanes": [lane.to_json() for lane in self.lanes],
        }


def repair(
    path: str | os.PathLike[str],
    *,
    skip_damaged: bool = False,
    progress: Progress | None = None,
) -> Repair:
    """Make a store sound again; one that is sound is left alone, one left by a crash is closed.

    Each lane keeps its rows up to the first damaged one, with their ids. Files that are sound are
    shared with the damaged store, which stays beside the repaired one as ``NAME.damaged``: nothing
    of it is changed or deleted. Interrupted, call it again.

    Args:
        path: the store; nobody may be writing it.
        skip_damaged: keep all whole episodes after the damage, too; they get new ids.
        progress: called with bytes read and bytes in all, about.

    Raises:
        StoreNotFoundError, FormatError: there is no store, or something in it may not be read.
        SchemaError: a lane of a store of many, or a log of a lane; repair the store. Or a name of
            such a length that nothing with a longer one can stand beside it.
        LockedError: somebody writes there.
        CorruptStoreError: it is damaged in a way that leaves nothing to start from.
        DiskFullError: no room; nothing was changed.
        FailedStoreError: a write or fsync failed.
    """
    with RepairSite(_place(user_paths.as_path(path))) as site:
        root = site.store
        for _ in range(_ATTEMPTS):
            report = verify(str(root), _part(progress, 0))
            lanes = _lanes(root)
            stamps = _stamps(lanes)
            held: dict[AnyPath, locks.DirectoryLock] = {}
            with contextlib.ExitStack() as locked:
                for folder in dict.fromkeys([*lanes, root]):
                    who = functools.partial(holder_of, folder)
                    try:
                        held[folder] = locks.DirectoryLock(folder, who=who)
                    except FileNotFoundError as error:
                        raise LockedError(
                            f"{folder}: moved or removed while it was being repaired; nothing was "
                            f"changed: repair it where it is now"
                        ) from error
                    locked.callback(held[folder].release)
                if stamps != _stamps(lanes):
                    continue  # somebody wrote it in between
                if not report.sound:
                    made, notes = _rebuild(site, root, report, progress, skip_damaged=skip_damaged)
                    before = site.swap(held[root].directory)
                    return Repair(
                        str(root),
                        changed=True,
                        before=str(before),
                        kept=sum(lane.kept for lane in made),
                        findings=report.findings,
                        lanes=made,
                        untrusted=sum(lane.untrusted for lane in made),
                        notes=notes,
                    )
            aside = newest_aside(root) if skip_damaged else None
            return Repair(
                str(root),
                changed=_close(root, lanes),
                before=None,
                kept=report.rows,
                findings=[],
                lanes=[],
                untrusted=report.untrusted,
                beyond_aside=0 if aside is None else _beyond(aside, report.rows),
            )
    raise LockedError(f"{root}: opened and closed by a writer all the time; end it first")


def _beyond(aside: AnyPath, n_rows: int) -> int:
    """Rows that ``skip_damaged`` would keep of a damaged store and its repair of `n_rows` did not.

    0 too if it cannot be looked at now.
    """
    with contextlib.suppress(MmreplayError), RepairSite(Path(str(aside))) as site:
        report = verify(str(site.store))
        if not report.sound:
            made, _ = _rebuild(site, site.store, report, None, skip_damaged=False)
            beyond = sum(lane.beyond for lane in made)
            # As many as these: it was repaired with skip_damaged.
            return beyond if sum(lane.kept for lane in made) + beyond != n_rows else 0
    return 0


def _place(path: Path) -> Path:
    """The store's own path, which can be given to another directory."""
    try:
        root = path if path.name not in ("", "..") and not path.is_symlink() else path.resolve()
    except (OSError, RuntimeError) as error:  # a link to itself
        raise StoreNotFoundError(f"{path}: cannot be resolved: {error}") from error
    if not root.name:
        raise StoreNotFoundError(f"{path}: has no directory above it, so it is no store")
    kind = None
    if root.name.startswith("lane-") or root.name in layout.LOGS:
        with contextlib.suppress(MmreplayError, OSError):
            kind = read_metadata(root.parent)["kind"]
    if kind == "lanes":
        raise SchemaError(
            f"{path}: this is a lane of {root.parent}; repair that, and all of its lanes with it"
        )
    if kind == "vector":
        raise SchemaError(f"{path}: this is a log of the lane {root.parent}; repair that")
    return root


def _part(progress: Progress | None, part: int) -> Progress | None:
    """Progress of the first or the second time that all is read."""
    if progress is None:
        return None
    return lambda done, total: progress(part * total + done, 2 * total)


def _close(root: AnyPath, lanes: Sequence[AnyPath]) -> bool:
    """Close lanes that are sound, and were left open by a crash; whether there were any."""
    left_open = [
        lane
        for lane in lanes
        if not all(read_metadata(log)["closed"] for log in _log_directories(lane))
    ]
    if left_open:
        durable_writes.sync_name(root)
    with _quietly():
        for lane in left_open:
            kind = VectorWriter if is_vector(lane) else Writer
            kind(lane, background=Background(0)).close()
    return bool(left_open)


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Without warnings of this thread's recoveries: what is not kept stands in the `Repair`."""
    own = threading.get_ident()

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != own

    _LOG.addFilter(is_of_others)
    try:
        yield
    finally:
        _LOG.removeFilter(is_of_others)


def _log_directories(lane: AnyPath) -> list[AnyPath]:
    """The directories of a lane's logs: the lane itself, or two in it that are no links."""
    if not is_vector(lane):
        return [lane]
    return [log for name in layout.LOGS if not (log := lane / name).is_symlink()]


def _stamps(lanes: Sequence[AnyPath]) -> list[Any]:
    """What changes when a writer opens or closes a lane."""
    return [
        checked_reads.identity(folder / "zarr.json")
        for lane in lanes
        for folder in dict.fromkeys([lane, *_log_directories(lane)])
    ]


def _lanes(root: AnyPath) -> list[AnyPath]:
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
    site: RepairSite,
    root: AnyPath,
    report: Report,
    progress: Progress | None,
    *,
    skip_damaged: bool,
) -> tuple[list[LaneRepair], list[str]]:
    """Build a store of what is sound at the site; returns what became of each lane, and notes."""
    durable_writes.remove_tree(site.new)
    lanes = _lanes(root)
    for folder in (root, *lanes, *(log for lane in lanes for log in _log_directories(lane))):
        refuse_newer(folder)
    attributes: dict[str, Any] | None = None
    notes: list[str] = []
    if lanes != [root]:
        attributes, notes = _root(root, lanes, report)
        durable_writes.make_directory(site.new)
        durable_writes.write_file(site.new / "zarr.json", layout.group_json(attributes))
    readable, unreadable = _open(site, lanes, report, attributes)
    made: dict[str, LaneRepair] = {}
    if attributes is not None and lanes:
        made = _add_empty(site.new, attributes, lanes, unreadable)
    while True:
        for name, lane in readable.items():
            if name not in made:
                made[name] = _rebuild_lane(site, root, lane, skip_damaged=skip_damaged)
        durable_writes.sync_tree(site.new)
        findings = verify(str(site.new), _part(progress, 1)).findings
        if not findings:
            done = [made[name] for name in sorted(made)]
            for lane_repair in done:
                prefix = f"{lane_repair.lane}: " if lane_repair.lane else ""
                notes += [prefix + text for text in lane_repair.notes]
            return done, notes
        for name in {finding.lane for finding in findings}:
            here = [finding for finding in findings if finding.lane == name]
            if name not in readable or not readable[name].mark_damaged(here):
                raise CorruptStoreError(
                    f"{root}: cannot be repaired: what is left would not be sound: {here[0]}"
                )
            durable_writes.remove_tree(site.new / name)
            del made[name]


def _rebuild_lane(
    site: RepairSite, root: AnyPath, lane: DamagedLane | DamagedVector, *, skip_damaged: bool
) -> LaneRepair:
    """Build one lane at the site; its errors name the lane that they are about."""
    name, path = lane.name, root / lane.name
    try:
        return lane.rebuild(site.new / name, skip_damaged=skip_damaged)
    except CorruptStoreError as error:
        text = str(error).replace(str(site.new / name), str(path))
        raise CorruptStoreError(text.replace(str(site.stand_in(name)), str(path))) from error
    except EvictedError as error:
        text = f"{root}: somebody wrote it while it was being repaired; end that first"
        raise LockedError(text) from error


def _open(
    site: RepairSite, lanes: Sequence[AnyPath], report: Report, root: Mapping[str, Any] | None
) -> tuple[dict[str, DamagedLane | DamagedVector], dict[str, str]]:
    """Each lane, open for reading; and what is wrong with those that cannot be.

    Raises CorruptStoreError if none of them can.
    """
    readable: dict[str, DamagedLane | DamagedVector] = {}
    unreadable: dict[str, str] = {}
    for lane in lanes:
        name = "" if root is None else lane.name
        findings = [finding for finding in report.findings if finding.lane == name]
        try:
            kind = DamagedVector if is_vector(lane) else DamagedLane
            readable[name] = kind(lane, name, findings, site.stand_in(name), root)
        except CorruptStoreError as error:
            unreadable[name] = str(error)
    if unreadable and not readable:
        raise CorruptStoreError(next(iter(unreadable.values())))
    return readable, unreadable


def _root(
    path: AnyPath, lanes: Sequence[AnyPath], report: Report
) -> tuple[dict[str, Any], list[str]]:
    """attributes.mmreplay of a store of many lanes; if they are damaged, as its lanes have them."""
    damaged = any(finding.file == "zarr.json" and not finding.lane for finding in report.findings)
    differing = {finding.lane for finding in report.findings if finding.message.startswith(DIFFERS)}
    if not damaged and differing < {lane.name for lane in lanes}:
        return read_metadata(path), []
    for lane in lanes:
        with contextlib.suppress(MmreplayError, OSError):
            own = read_metadata(lane)
            schema = parse.schema_from_json(own["schema"], str(lane))
            specs, _ = read_specs(lane, lane_columns(schema))
            kept = {name: own[name] for name in KEPT if name in own and name != "name"}
            root = {
                "format": layout.FORMAT,
                "kind": "lanes",
                "uuid": uuid.uuid4().hex,
                "schema": own["schema"],
                "layout": layout.layout_json(specs),
                **kept,
            }
            note = (
                f"zarr.json of the store is damaged: capacity, padding, env and layout of lanes to "
                f"come are now those of {lane.name}"
            )
            return root, [note]
    raise CorruptStoreError(
        f"{path}: cannot be repaired: neither its zarr.json nor that of a lane can be read; put "
        f"one of them back from a backup or a snapshot, and repair again"
    )


def _add_empty(
    new: AnyPath,
    root: Mapping[str, Any],
    lanes: Sequence[AnyPath],
    unreadable: Mapping[str, str],
) -> dict[str, LaneRepair]:
    """Empty lanes for those that are gone: the number of a lane is part of its rows' ids."""
    names = {lane.name: lane for lane in lanes}
    last = max(int(name[5:]) for name in names)
    if last - len(names) > _MOST_MISSING:
        raise CorruptStoreError(
            f"{new.parent}: cannot be repaired: expected lanes 0 to {last:,}, found {len(names):,}"
        )
    out: dict[str, LaneRepair] = {}
    for number in range(last + 1):
        name = layout.lane_name(number)
        if name in unreadable or name not in names:
            schema = parse.schema_from_json(root["schema"], str(new))
            specs = plan.plan_from_layout(schema, root["layout"], str(new))
            own = read_attributes(names[name]).own if name in names else None
            empty_lane(new / name, schema, specs, own or root)
            notes = (
                (f"nothing tells what was in it: {unreadable[name]}",) if name in unreadable else ()
            )
            out[name] = LaneRepair(
                name, 0, 0, 0, [], renumbered=False, missing=True, at_least=True, notes=notes
            )
    return out
