"""One lane of a damaged store: which of its rows are sound, and a new lane of those.

Invariant: the damaged lane is only read; no row comes along that a finding speaks of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from mmreplay.batches.runs import Steps, block_steps
from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError, StoreNotFoundError
from mmreplay.format import layout, parse
from mmreplay.maintenance.commit_records import read_state
from mmreplay.maintenance.copy_lane import SIDE_DATA, copy_lane, empty_lane, read_rows
from mmreplay.maintenance.episodes import row_bytes, write_runs
from mmreplay.maintenance.repair.damaged_rows import DamagedRows, Span, merged
from mmreplay.maintenance.verify.documents import digest_problems
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.store import verify
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.storage.checkpoint import PAGE_BYTES
from mmreplay.storage.lane_metadata import Root, read_root
from mmreplay.system import checked_reads, durable_writes
from mmreplay.system.held_directories import AnyPath

__all__ = ["DamagedLane", "LaneRepair", "read_own"]


@dataclasses.dataclass(frozen=True, slots=True)
class LaneRepair:
    """What became of one lane.

    Attributes:
        lane: its directory's name; empty in a store of one lane.
        kept: rows, of those that were there before.
        lost: rows, as far as they can be counted.
        beyond: sound rows among the lost ones, which ``skip_damaged`` would keep.
        damaged: [start, stop) of the rows that were found damaged.
        renumbered: whether rows that were kept have other ids now.
        missing: whether there was no such lane any more, or none that can be read; an empty one
            stands in its place, so that the ids in later lanes hold.
        untrusted: rows after the last flush of a writer that died, which were not kept, as they
            cannot be trusted in this place or after a restart; not among `lost`.
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


class DamagedLane:
    """A lane that may be damaged, open for reading.

    `findings` is what `verify` has found in it, `spare` where a copy with other documents may be
    made. Raises CorruptStoreError if it cannot be opened.
    """

    def __init__(
        self, lane: AnyPath, name: str, findings: Sequence[Finding], spare: AnyPath
    ) -> None:
        self.name = name
        self._n_same = 0  # rows of the new lane that have the ids that they had
        self._reader, findings = _open(lane, findings, spare)
        self._side_data = set(SIDE_DATA)
        if any("generator" in finding.message for finding in findings):
            self._side_data.remove("generator")
        self._rows = DamagedRows(self._reader, findings)

    def mark_damaged(self, findings: Iterable[Finding]) -> bool:
        """Take what was found in the lane made of this one for damaged.

        Returns False if that was known, so that to try again is of no use.
        """
        findings, n_known = list(findings), len(self._rows.spans)
        for finding in findings:
            rows = finding.rows
            if rows and rows[0] < self._n_same and rows not in self._rows.spans:
                self._rows.spans.append(rows)
        generator = any("generator" in finding.message for finding in findings)
        generator &= "generator" in self._side_data
        if generator:
            self._side_data.remove("generator")
        return generator or len(self._rows.spans) > n_known

    def rebuild(self, target: AnyPath, *, skip_damaged: bool) -> LaneRepair:
        """Make a closed lane of what is sound, at `target`, which does not exist yet.

        The rows before the damage are shared and keep their ids; `skip_damaged` appends what is
        sound after it, episode by episode. Raises CorruptStoreError if the lane has changed since
        it was verified.
        """
        reader = self._reader
        base, head = reader.base, reader.head
        damaged = merged(self._rows.spans, base, head)
        stop = damaged[0][0] if damaged else head
        if base and stop < base + layout.CONTEXT_ROWS:  # nothing that could be sampled
            stop = 0
        later = _sound_episodes(reader, damaged, max(stop, base)) if stop < head else []
        n_later = sum(end - start for start, end in later)
        if stop > 0:
            copy_lane(
                reader,
                target,
                stop,
                side_data=self._side_data,
                to_rewrite=self._rows.to_rewrite,
                wrong_sums=self._rows.wrong_sums,
            )
        else:
            empty_lane(target, reader.schema, reader.specs, reader.metadata)
        self._n_same = stop
        kept = max(stop - base, 0)
        if skip_damaged and later:
            write_runs(target, _read_runs(reader, later), os.cpu_count() or 1)
            kept += n_later
        return LaneRepair(
            self.name,
            kept,
            head - base - kept,
            0 if skip_damaged else n_later,
            damaged,
            skip_damaged and bool(later),
            untrusted=reader.untrusted,
        )


def _sound_episodes(reader: LaneReader, damaged: Sequence[Span], start: int) -> list[Span]:
    """Rows [start, stop) of each episode, or part of one, that no damaged row is in.

    The last row of a part before the damage is its final observation, and the first row after it
    begins an episode.
    """
    edges = [start, *(row for span in damaged for row in span), reader.head]
    out: list[Span] = []
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        if first < stop:
            bounds = sorted({first, *reader.resets(first, stop).tolist(), stop})
            out += [(low, high) for low, high in itertools.pairwise(bounds) if high - low > 1]
    return out


def _read_runs(reader: LaneReader, episodes: Iterable[Span]) -> Iterator[Steps]:
    """The steps of episodes, which lie in these rows, a block at a time."""
    schema = reader.schema
    size = block_steps(row_bytes(schema))
    for first, last in ((start, stop - 1) for start, stop in episodes):
        for start in range(first, last, size):
            stop = min(start + size, last)
            rows = {
                path: np.concatenate([part for _, part in read_rows(reader, spec, start, stop + 1)])
                for path, spec in reader.specs.items()
            }
            yield Steps(
                {key: rows[path] for key, path in schema.frame_paths.items()},
                rows["actions"][:-1],
                rows["rewards"][:-1],
                rows["non_terminals"][:-1] == 0,
                {name: rows[path][:-1] for name, path in schema.extra_paths.items()},
                begins=start == first,
                ends=stop == last,
            )


# ---------------------------------------------------------------- documents


def _open(
    lane: AnyPath, findings: Sequence[Finding], spare: AnyPath
) -> tuple[LaneReader, Sequence[Finding]]:
    """Open a lane, and what is wrong with its rows; where documents are damaged, a copy of it."""
    if not any(
        finding.file.endswith("zarr.json") or ".live" in finding.file for finding in findings
    ):
        with contextlib.suppress(MmreplayError):
            return LaneReader(lane), findings
    opened: list[tuple[LaneReader, Sequence[Finding]]] = []
    problems: list[str] = []
    # Nothing tells which is wrong where a document and the copy of it differ, but their rows.
    for number, trust_copy in enumerate((False, True)):
        path = spare.with_name(f"{spare.name}-{number}")
        try:
            _share(lane, path, findings, trust_copy=trust_copy)
            opened.append((LaneReader(path), verify(str(path)).findings))
        except (CorruptStoreError, FormatError) as error:
            problems.append(str(error).replace(str(path), str(lane)))
        else:
            if not opened[-1][1]:
                break
    if opened:
        return min(opened, key=lambda one: len(one[1]))
    text = problems[-1].removeprefix(f"{lane}: ")
    if "repair again" not in text:
        text = (
            f"cannot be repaired: {text}; put what is lost or damaged back from a backup or a "
            f"snapshot, and repair again"
        )
    raise CorruptStoreError(f"{lane}: {text}")


def _share(
    lane: AnyPath, target: AnyPath, findings: Iterable[Finding], *, trust_copy: bool
) -> None:
    """Give each file of a lane a second name, but for what is damaged and can be written again.

    Documents of arrays that cannot be read are written again from the copy in the lane's own
    zarr.json, or, with `trust_copy`, all; a damaged state page as one that nobody trusts, so that
    the checkpoint counts.
    """
    findings = list(findings)
    root = read_own(lane)
    copies = {} if root.copy is None else root.copy.documents()
    _share_tree(lane, target)
    for name, document in copies.items():
        file = target / name / "zarr.json"
        if trust_copy or not _is_json(file):
            durable_writes.make_directory(target / name)
            durable_writes.write_file(file, layout.dump(document), durable=False)
    own = dict(root.metadata)
    if any(finding.message.startswith("name:") for finding in findings):
        own.pop("name", None)  # another lane has it
    durable_writes.write_file(target / "zarr.json", layout.group_json(own), durable=False)
    is_wrong = any(finding.file.endswith(".live/state") for finding in findings)
    if (target / ".live").is_dir() and (is_wrong or read_state(target) is None):
        durable_writes.write_file(
            target / ".live" / "state", bytes(PAGE_BYTES), durable=False, overwritten=True
        )


def read_own(path: AnyPath) -> Root:
    """The zarr.json of a store or lane; nothing else tells what it is, and what to keep.

    Raises CorruptStoreError if it cannot be read, or is not what was written: a wrong capacity
    would evict rows.
    """
    try:
        root = read_root(path)
    except (CorruptStoreError, FormatError, StoreNotFoundError) as error:
        text = str(error).removeprefix(f"{path / 'zarr.json'}: ").removeprefix(f"{path}: ")
    else:
        text = next(iter(digest_problems(root.data)), "")
        if not text:
            return root
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
