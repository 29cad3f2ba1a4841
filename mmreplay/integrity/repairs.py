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
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmreplay import files, format, locks, parsing, places, planning, reading
from mmreplay.background import Background
from mmreplay.columns import EvictedError
from mmreplay.disk import holder_of
from mmreplay.errors import (
    CorruptStoreError,
    LockedError,
    MmreplayError,
    SchemaError,
    StoreNotFoundError,
)
from mmreplay.integrity.attributes import read_attributes, refuse_newer
from mmreplay.integrity.mending import MENDED
from mmreplay.integrity.report import Finding, Report
from mmreplay.integrity.salvage import LaneRepair, Patient
from mmreplay.integrity.store import ODD_ONE, verify
from mmreplay.integrity.workplace import Workplace, newest_aside
from mmreplay.lane import Writer
from mmreplay.reader import read_metadata, read_specs
from mmreplay.transplant import KEPT, empty_lane

__all__ = ["LaneRepair", "Repair", "repair"]

Progress = Callable[[int, int], None]

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
    """

    path: str
    changed: bool
    before: str | None
    kept: int
    findings: list[Finding]
    lanes: list[LaneRepair]
    untrusted: int = 0
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def lost(self) -> int:
        """Rows lost, over all lanes, as far as they can be counted."""
        return sum(one.lost for one in self.lanes)

    @property
    def at_least(self) -> bool:
        """Whether more rows than `lost` may be lost, as nothing tells how many there were."""
        return any(one.at_least for one in self.lanes)

    @property
    def aside(self) -> str | None:
        """Where the store from before the last repair is now, this one or an earlier one."""
        found = newest_aside(Path(self.path))
        return None if found is None else str(found)

    @property
    def beyond(self) -> int:
        """Rows among the lost ones that ``skip_damaged`` would keep."""
        return sum(one.beyond for one in self.lanes)

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
            "untrusted": self.untrusted,
            "notes": self.notes,
            "findings": [one.to_json() for one in self.findings],
            "lanes": [one.to_json() for one in self.lanes],
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
        SchemaError: a lane of a store of many; repair the store. Or a name of such a length that
            nothing with a longer one can stand beside it.
        LockedError: somebody writes there.
        CorruptStoreError: it is damaged in a way that leaves nothing to start from.
        DiskFullError: no room; nothing was changed.
        FailedStoreError: a write or fsync failed.
    """
    where = _place(places.given(path))
    with Workplace(where) as work:
        for _ in range(_ATTEMPTS):
            report = verify(where, _part(progress, 0))
            lanes = _lanes(where)
            stamps = [reading.identity(lane / "zarr.json") for lane in lanes]
            with contextlib.ExitStack() as held:
                for one in dict.fromkeys([*lanes, where]):
                    who = functools.partial(holder_of, one)
                    held.callback(locks.DirectoryLock(one, who=who).release)
                if stamps != [reading.identity(lane / "zarr.json") for lane in lanes]:
                    continue  # somebody wrote it in between
                if not report.sound:
                    made, notes = _rebuild(work, where, report, progress, skip_damaged=skip_damaged)
                    before = work.swap()
                    return Repair(
                        str(where),
                        changed=True,
                        before=str(before),
                        kept=sum(one.kept for one in made),
                        findings=report.findings,
                        lanes=made,
                        untrusted=sum(one.untrusted for one in made),
                        notes=notes,
                    )
            return Repair(
                str(where),
                changed=_close(where, lanes),
                before=None,
                kept=report.rows,
                findings=[],
                lanes=[],
                untrusted=report.untrusted,
            )
    raise LockedError(f"{where}: opened and closed by a writer all the time; end it first")


def _place(path: Path) -> Path:
    """The store's own path, which can be given to another directory."""
    try:
        where = path if path.name not in ("", "..") and not path.is_symlink() else path.resolve()
    except (OSError, RuntimeError) as error:  # a link to itself
        raise StoreNotFoundError(f"{path}: cannot be resolved: {error}") from error
    if not where.name:
        raise StoreNotFoundError(f"{path}: has no directory above it, so it is no store")
    kind = None
    if where.name.startswith("lane-"):
        with contextlib.suppress(MmreplayError, OSError):
            kind = read_metadata(where.parent)["kind"]
    if kind == "lanes":
        raise SchemaError(
            f"{path}: this is a lane of {where.parent}; repair that, and all of its lanes with it"
        )
    return where


def _part(progress: Progress | None, part: int) -> Progress | None:
    """Progress of the first or the second time that all is read."""
    if progress is None:
        return None
    return lambda done, total: progress(part * total + done, 2 * total)


def _close(where: Path, lanes: Sequence[Path]) -> bool:
    """Close lanes that are sound, and were left open by a crash; whether there were any."""
    found = [lane for lane in lanes if not read_metadata(lane)["closed"]]
    if found:
        files.sync_name(where)
    for lane in found:
        Writer(lane, background=Background(0)).close()
    return bool(found)


def _lanes(where: Path) -> list[Path]:
    found = [where / name for name in format.lane_names(reading.names(where))]
    found = [one for one in found if one.is_dir() and not one.is_symlink()]
    if found:
        return found
    with contextlib.suppress(MmreplayError):
        if read_metadata(where)["kind"] == "lanes":
            return []
    return [where]


# ---------------------------------------------------------------- building


def _rebuild(
    work: Workplace, where: Path, report: Report, progress: Progress | None, *, skip_damaged: bool
) -> tuple[list[LaneRepair], list[str]]:
    """A store of what is sound, at the place for it, and notes about it."""
    files.remove_tree(work.new)
    lanes = _lanes(where)
    for one in (where, *lanes):
        refuse_newer(one)
    root: dict[str, Any] | None = None
    notes: list[str] = []
    if lanes != [where]:
        root, notes = _root(where, lanes, report)
        files.make_directory(work.new)
        files.write_file(work.new / "zarr.json", format.group_json(root))
    patients, hopeless = _open(work, lanes, report, root)
    made: dict[str, LaneRepair] = {}
    if root is not None and lanes:
        made = _add_empty(work.new, root, lanes, hopeless)
    while True:
        for name, patient in patients.items():
            if name not in made:
                try:
                    made[name] = patient.rebuild(work.new / name, skip_damaged=skip_damaged)
                except CorruptStoreError as error:
                    lane = where / name
                    spare = str(work.path / f"spare-{name}")
                    text = str(error).replace(str(work.new / name), str(lane))
                    raise CorruptStoreError(text.replace(spare, str(lane))) from error
                except EvictedError as error:
                    text = f"{where}: somebody wrote it while it was being repaired; end that first"
                    raise LockedError(text) from error
        files.sync_tree(work.new)
        findings = verify(work.new, _part(progress, 1)).findings
        if not findings:
            done = [made[name] for name in sorted(made)]
            for about in done:
                notes += [f"{about.lane}: {text}" if about.lane else text for text in about.notes]
            return done, notes
        for name in {one.lane for one in findings}:
            here = [one for one in findings if one.lane == name]
            if name not in patients or not patients[name].lose(here):
                raise CorruptStoreError(
                    f"{where}: cannot be repaired: what is left would not be sound: {here[0]}"
                )
            files.remove_tree(work.new / name)
            del made[name]


def _open(
    work: Workplace, lanes: Sequence[Path], report: Report, root: Mapping[str, Any] | None
) -> tuple[dict[str, Patient], dict[str, str]]:
    """Each lane, open for reading; and what is wrong with those that cannot be.

    Raises:
        CorruptStoreError: none of them can.
    """
    patients: dict[str, Patient] = {}
    hopeless: dict[str, str] = {}
    for lane in lanes:
        name = "" if root is None else lane.name
        findings = [one for one in report.findings if one.lane == name]
        try:
            patients[name] = Patient(lane, name, findings, work.path / f"spare-{name}", root)
        except CorruptStoreError as error:
            hopeless[name] = str(error)
    if hopeless and not patients:
        raise CorruptStoreError(next(iter(hopeless.values())))
    return patients, hopeless


def _root(where: Path, lanes: Sequence[Path], report: Report) -> tuple[dict[str, Any], list[str]]:
    """attributes.mmreplay of a store of many lanes; if they are damaged, as its lanes have them."""
    found = read_attributes(where, "lanes")
    if found.own is not None and found.mended:
        return found.own, [MENDED]
    damaged = any(one.file == "zarr.json" and not one.lane for one in report.findings)
    odd = {one.lane for one in report.findings if one.message.startswith(ODD_ONE)}
    if not damaged and odd < {lane.name for lane in lanes}:
        return read_metadata(where), []
    for lane in lanes:
        with contextlib.suppress(MmreplayError, OSError):
            own = read_metadata(lane)
            schema = parsing.schema_from_json(own["schema"], str(lane))
            specs, _ = read_specs(lane, schema)
            kept = {name: own[name] for name in KEPT if name in own and name != "name"}
            root = {
                "format": format.FORMAT,
                "kind": "lanes",
                "uuid": uuid.uuid4().hex,
                "schema": own["schema"],
                "layout": format.layout_json(specs),
                **kept,
            }
            note = (
                f"zarr.json of the store is damaged: capacity, padding, env and layout of lanes to "
                f"come are now those of {lane.name}"
            )
            return root, [note]
    raise CorruptStoreError(
        f"{where}: cannot be repaired: neither its zarr.json nor that of a lane can be read"
    )


def _add_empty(
    new: Path,
    root: Mapping[str, Any],
    lanes: Sequence[Path],
    hopeless: Mapping[str, str],
) -> dict[str, LaneRepair]:
    """Empty lanes for those that are gone: the number of a lane is part of its rows' ids.

    Args:
        new: the store that is being built.
        root: its attributes.
        lanes: those that are there.
        hopeless: those among them that tell nothing any more, and what is wrong with them.
    """
    names = {lane.name: lane for lane in lanes}
    last = max(int(name[5:]) for name in names)
    if last - len(names) > _MOST_MISSING:
        raise CorruptStoreError(
            f"{new.parent}: cannot be repaired: expected lanes 0 to {last:,}, found {len(names):,}"
        )
    out: dict[str, LaneRepair] = {}
    for number in range(last + 1):
        name = format.lane_name(number)
        if name in hopeless or name not in names:
            schema = parsing.schema_from_json(root["schema"], str(new))
            specs = planning.plan_from_layout(schema, root["layout"], str(new))
            own = read_attributes(names[name], "lane").own if name in names else None
            empty_lane(new / name, schema, specs, own or root)
            notes = (f"nothing tells what was in it: {hopeless[name]}",) if name in hopeless else ()
            out[name] = LaneRepair(
                name, 0, 0, 0, [], renumbered=False, missing=True, at_least=True, notes=notes
            )
    return out
