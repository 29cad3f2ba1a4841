"""`repair`: a store again of what is sound in a damaged one.

Invariant: the damaged store is only read. What is sound of it is put together beside it, and takes
its name in one step when it is whole, durable and verified; the damaged one stays under another
name. Interrupted at any point, there is one or the other, and the same call works again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay import files, format, recovery
from mmreplay.background import Background
from mmreplay.columns import Array
from mmreplay.errors import CorruptStoreError, MmreplayError
from mmreplay.integrity.report import Finding, Report
from mmreplay.integrity.store import verify
from mmreplay.lane import Writer
from mmreplay.reader import LaneReader, read_metadata
from mmreplay.schema import FRAME
from mmreplay.transplant import KEPT, read_rows, transplant

__all__ = ["LaneRepair", "Repair", "repair"]

# What can be made anew of the rows, or is about none.
_DERIVED = ("episodes", "checksums", "priorities")

Span = tuple[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class LaneRepair:
    """What became of one lane.

    Attributes:
        lane: its directory's name; empty in a store of one lane.
        kept: rows, of those that were kept before.
        lost: rows.
        damaged: [start, stop) of the rows that were found damaged.
        renumbered: whether rows after a damaged episode have other ids now.
    """

    lane: str
    kept: int
    lost: int
    damaged: list[Span]
    renumbered: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """What a repair did.

    Attributes:
        path: the store.
        changed: whether there was anything to do.
        before: where the damaged store is now; None if nothing was changed.
        findings: what `verify` had found.
        lanes: what became of each lane.
    """

    path: str
    changed: bool
    before: str | None
    findings: list[Finding]
    lanes: list[LaneRepair]

    @property
    def lost(self) -> int:
        """Rows lost, over all lanes."""
        return sum(one.lost for one in self.lanes)

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        return {
            "path": self.path,
            "changed": self.changed,
            "before": self.before,
            "lost": self.lost,
            "findings": [one.to_json() for one in self.findings],
            "lanes": [dataclasses.asdict(one) for one in self.lanes],
        }


def repair(path: str | os.PathLike[str], *, skip_damaged: bool = False) -> Repair:
    """Make a store sound again; a store that is sound is left alone, one left by a crash closed.

    Each lane keeps its rows up to the first damaged one, with their ids. Files that are sound are
    shared with the damaged store, which stays beside the repaired one as ``NAME.damaged``: nothing
    of it is deleted.

    Args:
        path: the store; nobody may be writing it.
        skip_damaged: keep all whole episodes instead, also those after the damage; in a damaged
            lane they get new ids.

    Raises:
        StoreNotFoundError, FormatError: there is no store.
        LockedError: somebody writes there.
        CorruptStoreError: it is damaged in a way that leaves nothing to start from, such as a lane
            without its zarr.json.
        DiskFullError: no room; nothing was changed.
    """
    where = Path(path)
    built = where.with_name(f".{where.name}.repair.tmp")
    _roll_back(where, built)
    report = verify(where)
    lanes = _lanes(where)
    with contextlib.ExitStack() as locks:
        for lane in lanes:
            locks.callback(files.DirectoryLock(lane, who=lambda: "").release)
        if report.sound and report.state == "closed":
            return Repair(str(where), changed=False, before=None, findings=[], lanes=[])
        try:
            made = _rebuild(where, built, lanes, report, skip_damaged=skip_damaged)
            files.sync_tree(built)
            files.sync_directory(built.parent)
        except BaseException:
            files.remove_tree(built)
            raise
        aside = _free_name(where)
        files.rename(where, aside)
        files.rename(built, where)
        files.sync_directory(where.parent)
    return Repair(str(where), changed=True, before=str(aside), findings=report.findings, lanes=made)


def _lanes(where: Path) -> list[Path]:
    found = sorted(one for one in where.glob("lane-*") if one.name[5:].isdecimal())
    return found or [where]


def _free_name(where: Path) -> Path:
    name, number = where.with_name(f"{where.name}.damaged"), 1
    while name.exists():
        number += 1
        name = where.with_name(f"{where.name}.damaged-{number}")
    return name


def _roll_back(where: Path, built: Path) -> None:
    """Begin anew where a repair was interrupted; between its two renames the store has no name."""
    if not where.exists() and built.exists():
        asides = sorted(where.parent.glob(f"{where.name}.damaged*"), key=lambda one: len(one.name))
        if asides:
            files.rename(asides[-1], where)
    files.remove_tree(built)


def _rebuild(
    where: Path, built: Path, lanes: Sequence[Path], report: Report, *, skip_damaged: bool
) -> list[LaneRepair]:
    if lanes != [where]:
        files.make_directory(built)
        try:
            read_metadata(where)
            root = files.read_bytes(where / "zarr.json", format.MAX_METADATA_BYTES)
        except (MmreplayError, OSError) as error:
            raise _hopeless(where, error) from error
        files.write_file(built / "zarr.json", root)
    out = []
    for lane in lanes:
        name = "" if lane == where else lane.name
        spans = _damaged(report, name)
        out.append(_rebuild_lane(lane, built / name, name, spans, skip_damaged=skip_damaged))
    return out


def _hopeless(path: Path, error: Exception) -> CorruptStoreError:
    return CorruptStoreError(f"{path}: cannot be repaired, there is nothing to start from: {error}")


def _damaged(report: Report, lane: str) -> list[Span]:
    """The rows of a lane that findings speak of."""
    return [
        one.rows
        for one in report.findings
        if one.lane == lane and one.rows and one.array.partition("/")[0] not in _DERIVED
    ]


def _rebuild_lane(
    lane: Path, target: Path, name: str, spans: Sequence[Span], *, skip_damaged: bool
) -> LaneRepair:
    """What is sound of a lane; once more without what turns out to be unsound of that."""
    try:
        reader = LaneReader(lane)
    except MmreplayError as error:
        raise _hopeless(lane, error) from error
    base, head = reader.base, reader.head
    while True:
        damaged = _merged(spans, base, head)
        renumbered, stop = bool(damaged) and skip_damaged, head
        if renumbered:
            kept = _copy_episodes(reader, target, damaged)
        else:
            stop = damaged[0][0] if damaged else head
            if base and stop < base + format.CONTEXT_ROWS:  # nothing that could be sampled
                stop, renumbered = 0, True
            kept = max(stop - base, 0)
            if stop:
                transplant(reader, target, stop)
            else:
                _copy_episodes(reader, target, [(base, head)])
        findings = verify(target).findings
        if not findings:
            return LaneRepair(name, kept, head - base - kept, damaged, renumbered)
        files.remove_tree(target)
        more = [one.rows for one in findings if one.rows]
        if renumbered or not more or min(more)[0] >= stop:
            raise CorruptStoreError(
                f"{lane}: cannot be repaired: what is left would not be sound: {findings[0]}"
            )
        spans = [*spans, *more]


def _merged(spans: Sequence[Span], base: int, head: int) -> list[Span]:
    """Spans within [base, head), ascending, those that touch as one."""
    out: list[Span] = []
    for start, stop in sorted((max(start, base), min(stop, head)) for start, stop in spans):
        if stop <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(stop, out[-1][1])
        else:
            out.append((start, stop))
    return out


# ---------------------------------------------------------------- by episodes


def _copy_episodes(reader: LaneReader, target: Path, damaged: Sequence[Span]) -> int:
    """A lane of the episodes that touch no damaged row; returns its rows."""
    own = {key: reader.metadata[key] for key in KEPT if key in reader.metadata}
    try:
        recovery.build_lane(target, reader.schema, reader.specs, own)
        with Writer(target, background=Background(0)) as writer:
            for start, stop in _episodes(reader, damaged):
                _copy_episode(reader, writer, start, stop)
            return writer.rows
    except BaseException:
        files.remove_tree(target)
        raise


def _episodes(reader: LaneReader, damaged: Sequence[Span]) -> list[Span]:
    """[start, stop) of the episodes that are whole outside the damaged rows."""
    out: list[Span] = []
    edges = [reader.base, *(row for span in damaged for row in span), reader.head]
    for start, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop <= start:
            continue
        starts = (np.flatnonzero(_rows(reader, "resets", start, stop)) + start).tolist()
        # The last one before damage may go on in it.
        stops = [*starts[1:], stop] if stop == reader.head else starts[1:]
        out += zip(starts, stops, strict=False)
    return out


def _rows(reader: LaneReader, path: str, start: int, stop: int) -> Array:
    return np.concatenate([rows for _, rows in read_rows(reader, reader.specs[path], start, stop)])


def _copy_episode(reader: LaneReader, writer: Writer, start: int, stop: int) -> None:
    schema = reader.schema
    frames = {key: _rows(reader, path, start, stop) for key, path in schema.frame_paths.items()}
    columns = {path: _rows(reader, path, start, stop) for path in ("actions", "rewards")}
    flags = _rows(reader, "non_terminals", start, stop)
    extras = {name: _rows(reader, path, start, stop) for name, path in schema.extra_paths.items()}

    def frame(at: int) -> Any:
        one = {key: rows[at] for key, rows in frames.items()}
        return one if schema.is_dict else one[FRAME]

    writer.reset(frame(0))
    last = stop - start - 2
    for step in range(last + 1):
        ended = not flags[step]
        writer.step(
            columns["actions"][step],
            columns["rewards"][step],
            frame(step + 1),
            terminated=ended and step == last,
            truncated=not ended and step == last,
            life_lost=ended,
            **{name: rows[step] for name, rows in extras.items()},
        )
