"""A damaged lane of many environments: which of its ticks and starts are sound, and a new lane.

Invariant: the damaged lane is only read; no row comes along that a finding speaks of, and no tick
of an episode whose start does not.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import layout
from mmreplay.format.layout import LOGS, STARTS, TICKS
from mmreplay.ids import Array
from mmreplay.maintenance.copy_lane import SIDE_DATA, copy_vector, empty_vector, read_rows
from mmreplay.maintenance.repair import notes
from mmreplay.maintenance.repair.damaged_rows import DamagedRows
from mmreplay.maintenance.repair.derived import DerivedColumns
from mmreplay.maintenance.repair.lane import LaneRepair
from mmreplay.maintenance.repair.left_out import leave_out
from mmreplay.maintenance.repair.spans import Span, merged
from mmreplay.maintenance.repair.stand_in import Uncertainty
from mmreplay.maintenance.repair.vector_stand_in import share_tree, stand_in_vector
from mmreplay.maintenance.verify.chunk_files import narrow_files
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.steps import PRIORITY_OF_NOBODY
from mmreplay.maintenance.verify.store import verify
from mmreplay.reading.log_reader import LogReader
from mmreplay.reading.vector_reader import VectorReader
from mmreplay.schema import FRAME
from mmreplay.storage import chunk_files
from mmreplay.storage.chunk_files import EvictedError
from mmreplay.storage.lane_metadata import read_metadata
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.background import Background
from mmreplay.writing.vector_writer import VectorWriter

_PIECE_CELLS = 1 << 18
_PIECE_TICKS = 64

_LOST_PRIORITIES = (
    "priorities: some are of environments that were left out, so none of them is kept; each "
    "transition counts as a new one"
)
_LEFT_OUT = (
    "frames: {:,} transitions are lost: of an environment of which an inner chunk is damaged each "
    "episode from there on, and all of one whose first observation is; they are left out of their "
    "ticks, and all others keep their ids"
)


def is_vector(lane: AnyPath) -> bool:
    """Whether a lane is one of many environments, also where its zarr.json is lost."""
    with contextlib.suppress(MmreplayError, OSError):
        return bool(read_metadata(lane)["kind"] == "vector")
    return any((lane / name).is_dir() and not (lane / name).is_symlink() for name in LOGS)


class DamagedVector:
    """A lane of many environments that may be damaged, open for reading.

    `findings`, `spare` and `root` as of `DamagedLane`. Raises CorruptStoreError if nothing tells
    what is in it.
    """

    def __init__(
        self,
        lane: AnyPath,
        name: str,
        findings: Sequence[Finding],
        spare: AnyPath,
        root: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        given = list(findings)
        self._reader, findings, self._uncertainty = _open(lane, findings, spare, root)
        of_log = self._take(findings)
        remade = self._derived.notes
        n_left_out = self._leave_out(of_log, spare)
        self._n_left_out = n_left_out or 0
        if n_left_out is not None:
            self._reader = VectorReader(spare, own_documents=True)
            findings = verify(str(spare)).findings
            of_log = self._take(findings)
        self._side_data = set(SIDE_DATA)
        if any("generator" in finding.message for finding in findings):
            self._side_data.remove("generator")
        # What is damaged of these is not in a stand-in.
        of_ticks = [_of_log(one, TICKS) for one in given if _is_of(one, TICKS)]
        lost_priorities = any(PRIORITY_OF_NOBODY in finding.message for finding in findings)
        if lost_priorities:
            self._side_data.remove("priorities")
        self._n_same = {TICKS: 0, STARTS: 0}  # rows of the new lane that are those of this one
        self._notes = (
            *self._uncertainty.notes,
            *remade,
            *([_LEFT_OUT.format(n_left_out)] if n_left_out else ()),
            *notes.duplicate_notes(lane, given),
            *(
                [_LOST_PRIORITIES]
                if lost_priorities
                else notes.priority_notes([*of_ticks, *of_log[TICKS]], self._reader.ticks)
            ),
        )

    def _take(self, findings: Iterable[Finding]) -> dict[str, list[Finding]]:
        """Take what was found for damaged, but for what can be made again; returns it by log."""
        findings, logs = list(findings), {TICKS: self._reader.ticks, STARTS: self._reader.starts}
        own = {log: [_of_log(one, log) for one in findings if _is_of(one, log)] for log in logs}
        self._derived = derived = DerivedColumns(self._reader, own)
        rows = DamagedRows(self._reader.ticks, derived.rest(TICKS, own[TICKS]))
        derived.make(merged(rows.spans, self._reader.base, self._reader.head))
        own = {log: derived.rest(log, own[log]) for log in logs}
        self._rows = {log: DamagedRows(reader, own[log]) for log, reader in logs.items()}
        self._unchecked = {
            log: notes.unchecked_rows(reader, own[log]) for log, reader in logs.items()
        }
        return own

    def _leave_out(self, of_log: Mapping[str, Sequence[Finding]], spare: AnyPath) -> int | None:
        """See `leave_out`; a lane that was left open, or lacks columns, is copied before."""
        reader = self._reader
        if not narrow_files(of_log[TICKS]) and not self._rows[STARTS].spans:
            return None
        if not reader.is_closed or any(self._derived.paths.values()):
            closed = spare.with_name(f"{spare.name}-closed")
            try:
                if reader.is_closed:
                    share_tree(reader.path, closed)
                    self._derived.put_into(closed)
                else:
                    stops = {TICKS: reader.head, STARTS: reader.starts.head}
                    copy_vector(reader, closed, stops, **self._how_to_copy())
                reader = VectorReader(closed, own_documents=True)
            except (CorruptStoreError, FormatError, EvictedError):
                return None
            findings = verify(str(closed)).findings
            of_log = {
                log: [_of_log(one, log) for one in findings if _is_of(one, log)] for log in of_log
            }
        return leave_out(reader, of_log, spare)

    def _how_to_copy(self) -> dict[str, Any]:
        """What `copy_vector` has to know of the damage."""
        return {
            "to_rewrite": {log: one.to_rewrite for log, one in self._rows.items()},
            "wrong_sums": {log: one.wrong_sums for log, one in self._rows.items()},
            "made": self._derived.to_copy(),
        }

    def mark_damaged(self, findings: Iterable[Finding]) -> bool:
        """Take what was found in the lane made of this one for damaged.

        Returns False if that was known, so that to try again is of no use.
        """
        findings, is_new = list(findings), False
        for finding in findings:
            for log, damage in self._rows.items():
                rows = finding.rows
                if (
                    _is_of(finding, log)
                    and rows
                    and rows[0] < self._n_same[log]
                    and rows not in damage.spans
                ):
                    damage.spans.append(rows)
                    is_new = True
        generator = any("generator" in finding.message for finding in findings)
        if generator and "generator" in self._side_data:
            self._side_data.remove("generator")
            is_new = True
        return is_new

    def rebuild(self, target: AnyPath, *, skip_damaged: bool) -> LaneRepair:
        """Make a closed lane of what is sound, at `target`, which does not exist yet.

        Ticks are kept up to the first that is damaged, or is of an episode whose start is at or
        after the first that is. `skip_damaged` keeps whole episodes after that, too. Raises
        CorruptStoreError if the lane has changed since it was verified.
        """
        reader = self._reader
        base, head = reader.base, reader.head
        damaged = merged(self._rows[TICKS].spans, base, head)
        lost = merged(self._rows[STARTS].spans, reader.starts.base, reader.starts.head)
        stop = damaged[0][0] if damaged else head
        n_starts = lost[0][0] if lost else reader.starts.head
        stop = self._first_without_start(base, stop, n_starts)
        if base and stop < base + layout.CONTEXT_TICKS:  # nothing that could be sampled
            stop = 0
        whole, n_later = self._whole_episodes(max(stop, base), damaged, lost)
        if stop > 0:
            copy_vector(
                reader,
                target,
                {TICKS: stop, STARTS: n_starts},
                side_data=self._side_data,
                **self._how_to_copy(),
            )
        else:
            empty_vector(target, reader)
        self._n_same = {TICKS: stop, STARTS: n_starts if stop else 0}
        kept = max(stop - base, 0)
        spans = [(base, stop)]
        if skip_damaged and whole:
            self._append(target, max(stop, base), damaged, whole)
            kept += n_later
            spans.append((max(stop, base), head))
        return LaneRepair(
            self.name,
            kept,
            head - base - kept + self._uncertainty.lost,
            0 if skip_damaged else n_later,
            damaged,
            skip_damaged and bool(whole),
            at_least=not self._uncertainty.known,
            untrusted=self._uncertainty.untrusted,
            notes=(*self._notes, *self._more_notes(lost, stop, spans, n_later)),
            left_out=self._n_left_out,
        )

    def _more_notes(
        self, lost: Sequence[Span], stop: int, spans: Sequence[Span], n_later: int
    ) -> Iterator[str]:
        if lost:
            rows = ", ".join(f"{start:,} to {end - 1:,}" for start, end in lost[:4])
            later = "and no whole episode lies after them"
            if n_later:
                how = "with new ids" if len(spans) > 1 else "only with skip_damaged"
                later = f"and after them whole episodes {how}"
            base = self._reader.base
            kept = f"ticks before {stop:,} are kept" if stop > base else f"none from {base:,} on is"
            yield (
                f"starts: rows {rows} are damaged; {kept}, as that is the "
                f"first of an episode that begins there or later, {later}"
            )
        reader = self._reader
        for path in notes.unchecked_notes(self._unchecked[TICKS], spans, reader.ticks):
            yield f"{TICKS}/{path}"
        of_starts = [(reader.starts.base, self._n_same[STARTS])]
        for path in notes.unchecked_notes(self._unchecked[STARTS], of_starts, reader.starts):
            yield f"{STARTS}/{path}"

    # ------------------------------------------------------------ episodes

    def _first_without_start(self, base: int, stop: int, n_starts: int) -> int:
        """The first tick in [base, stop) that is of a start from `n_starts` on; `stop` if none."""
        reader = self._reader
        if n_starts >= reader.starts.head:
            return stop
        n = max(_PIECE_CELLS // reader.width, 1)
        for start in range(base, stop, n):
            end = min(start + n, stop)
            episodes = _read(reader.ticks, "episode", start, end)
            found = np.flatnonzero((episodes >= n_starts).any(1))
            if found.size:
                return start + int(found[0])
        return stop

    def _undamaged(self, start: int, damaged: Sequence[Span], n: int) -> Iterator[Span]:
        """Pieces of the ticks from `start` on that are sound, of at most `n`."""
        edges = [start, *(tick for span in damaged for tick in span), self._reader.head]
        for first, stop in zip(edges[::2], edges[1::2], strict=True):
            for low in range(max(first, start), stop, n):
                yield low, min(low + n, stop)

    def _whole_episodes(
        self, start: int, damaged: Sequence[Span], lost: Sequence[Span]
    ) -> tuple[set[int], int]:
        """The episodes that begin at tick `start` or later and are sound whole; and their ticks."""
        reader, whole = self._reader, set[int]()
        if not damaged and not lost:
            return whole, 0
        running: dict[int, int] = {}  # by environment, since their first tick
        before = start
        for first, stop in self._undamaged(start, damaged, max(_PIECE_CELLS // reader.width, 1)):
            if first != before:
                running.clear()  # they go on in the damage
            before = stop
            episodes, ends = (_read(reader.ticks, p, first, stop) for p in ("episode", "ends"))
            for tick, (row, ended) in enumerate(zip(episodes, ends, strict=True), first):
                old = running
                running = {}
                for env in np.flatnonzero(row >= 0).tolist():
                    number = int(row[env])
                    if old.get(env) != number and not self._begins(number, env, tick, lost):
                        continue
                    if ended[env]:
                        whole.add(number)
                    else:
                        running[env] = number
        if before == reader.head:
            whole.update(running.values())
        numbers = np.array(sorted(whole), np.int64)
        n_ticks = 0
        for first, stop in self._undamaged(start, damaged, max(_PIECE_CELLS // reader.width, 1)):
            episodes = _read(reader.ticks, "episode", first, stop)
            n_ticks += int(np.isin(episodes, numbers).any(1).sum())
        return whole, n_ticks

    def _begins(self, number: int, env: int, tick: int, lost: Sequence[Span]) -> bool:
        """Whether an episode has a sound start, which names this step as its first."""
        starts, derived = self._reader.starts, self._derived
        if not starts.base <= number < starts.head:
            return False
        if any(low <= number < high for low, high in lost):
            return False
        return [derived.read(path, number) for path in ("env", "tick")] == [env, tick]

    def _append(
        self, target: AnyPath, start: int, damaged: Sequence[Span], whole: set[int]
    ) -> None:
        """Append the steps of some episodes to a closed lane, those of a tick together."""
        reader, numbers = self._reader, np.array(sorted(whole), np.int64)
        try:
            with VectorWriter(target, background=Background(0)) as writer:
                for first, stop in self._undamaged(start, damaged, _PIECE_TICKS):
                    rows = {
                        path: np.concatenate(
                            [part for _, part in read_rows(reader.ticks, spec, first, stop)]
                        )
                        for path, spec in reader.ticks.specs.items()
                        if path != "count"
                    }
                    for at in range(stop - first):
                        row = {path: values[at] for path, values in rows.items()}
                        mask = np.isin(row["episode"], numbers)
                        if mask.any():
                            self._append_tick(writer, row, mask)
        except BaseException:
            durable_writes.remove_tree(target)
            raise

    def _append_tick(self, writer: VectorWriter, row: dict[str, Array], mask: Array) -> None:
        begins = mask & ~writer.running
        if begins.any():
            writer.reset(self._first_frames(row["episode"], begins), begins)
        ended, down = row["ends"] != 0, row["non_terminals"] == 0
        extras = {name: row[path] for name, path in self._reader.schema.extra_paths.items()}
        writer.step(
            row["actions"],
            row["rewards"],
            self._frames(row),
            mask & ended & down,
            mask & ended & ~down,
            life_lost=mask & down & ~ended,
            mask=mask,
            **extras,
        )

    def _first_frames(self, episodes: Array, begins: Array) -> Any:
        """First observations of the environments that begin an episode, zeros of the others."""
        starts, out = self._reader.starts, dict[str, Array]()
        for path in self._reader.schema.frame_paths.values():
            spec = starts.specs[path]
            out[path] = np.zeros((len(begins), *spec.row_shape), spec.dtype)
            for env in np.flatnonzero(begins).tolist():
                number = int(episodes[env])
                ((_, rows),) = read_rows(starts, spec, number, number + 1)
                out[path][env] = rows[0]
        return self._frames(out)

    def _frames(self, row: dict[str, Array]) -> Any:
        """Frames as a writer takes them."""
        schema = self._reader.schema
        frames = {key: row[path] for key, path in schema.frame_paths.items()}
        return frames if schema.is_dict else frames[FRAME]


def _open(
    lane: AnyPath, findings: Sequence[Finding], spare: AnyPath, root: Mapping[str, Any] | None
) -> tuple[VectorReader, Sequence[Finding], Uncertainty]:
    """Open a lane, or a stand-in for it, with what is wrong with that, and what it cannot tell."""
    if not any(
        finding.file.endswith("zarr.json") or ".live" in finding.file for finding in findings
    ):
        with contextlib.suppress(MmreplayError):
            reader = VectorReader(lane, own_documents=True)
            return reader, findings, Uncertainty(untrusted=reader.untrusted)
    whole = spare.with_name(f"{spare.name}-documents")
    try:
        uncertainty = stand_in_vector(lane, whole, root)
        return VectorReader(whole, own_documents=True), verify(str(whole)).findings, uncertainty
    except (CorruptStoreError, FormatError) as error:
        text = str(error).replace(str(whole), str(lane)).removeprefix(f"{lane}: ")
        text = text.removeprefix(f"{lane}/")
        if "repair again" not in text:
            text += (
                "; put what is lost or damaged back from a backup or a snapshot, and repair again"
            )
        raise CorruptStoreError(f"{lane}: cannot be repaired: {text}") from error


def _read(log: LogReader, path: str, start: int, stop: int) -> Array:
    return chunk_files.read_rows(log, log.specs[path], start, stop)


def _is_of(finding: Finding, log: str) -> bool:
    """Whether a finding is about one of the two logs."""
    return finding.file.removeprefix(f"{finding.lane}/").partition("/")[0] == log


def _of_log(finding: Finding, log: str) -> Finding:
    """A finding about a log as if that were a lane."""
    return dataclasses.replace(
        finding,
        file=finding.file.removeprefix(f"{finding.lane}/").removeprefix(f"{log}/"),
        array=finding.array.removeprefix(f"{log}/"),
    )
