"""One lane of a damaged store: which of its rows are sound, and a new lane of those.

Invariant: the damaged lane is only read; no row comes along that a finding speaks of.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import layout
from mmreplay.maintenance.copy_lane import SIDE_DATA, copy_lane, empty_lane
from mmreplay.maintenance.repair import notes
from mmreplay.maintenance.repair.damaged_rows import DamagedRows
from mmreplay.maintenance.repair.layouts import fits
from mmreplay.maintenance.repair.spans import Span, merged
from mmreplay.maintenance.repair.stand_in import Uncertainty, stand_in
from mmreplay.maintenance.repair.whole_episodes import append_episodes, whole_episodes
from mmreplay.maintenance.verify.report import Finding
from mmreplay.maintenance.verify.store import verify
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.system.held_directories import AnyPath


@dataclasses.dataclass(frozen=True, slots=True)
class LaneRepair:
    """What became of one lane.

    Attributes:
        lane: its directory's name; empty in a store of one lane.
        kept: rows, of those that were there before.
        lost: rows, as far as they can be counted.
        beyond: rows of whole episodes among the lost ones, which ``skip_damaged`` would keep.
        damaged: [start, stop) of the rows that were found damaged.
        renumbered: whether rows that were kept have other ids now.
        missing: whether there was no such lane any more, or nothing in it that tells what it held;
            an empty one stands in its place, so that the ids in later lanes hold.
        at_least: whether more rows than `lost` may be lost, as nothing tells how many there were.
        untrusted: rows after the last flush of a writer that died, which were not kept, as they
            cannot be trusted in this place or after a restart; not among `lost`.
        notes: what else is not what it was, or may not be, a sentence each.
        left_out: of a lane of many environments, whose rows are ticks: the transitions that were
            left out of ticks that are kept. None of a lane of one environment.
    """

    lane: str
    kept: int
    lost: int
    beyond: int
    damaged: list[Span]
    renumbered: bool
    missing: bool = False
    at_least: bool = False
    untrusted: int = 0
    notes: tuple[str, ...] = ()
    left_out: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        damaged = [list(span) for span in self.damaged]
        return {**dataclasses.asdict(self), "damaged": damaged, "notes": list(self.notes)}


class DamagedLane:
    """A lane that may be damaged, open for reading.

    `findings` is what `verify` has found in it, `spare` where a stand-in may be made, `root` the
    attributes.mmreplay of the store of many lanes, if it is one. Raises CorruptStoreError if
    nothing tells what is in it.
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
        self._n_same = 0  # rows of the new lane that have the ids that they had
        given = list(findings)
        self._reader, findings, self._uncertainty = _open(lane, findings, spare, root)
        self._side_data = set(SIDE_DATA)
        if any("generator" in finding.message for finding in findings):
            self._side_data.remove("generator")
        self._unchecked = notes.unchecked_rows(self._reader, [*given, *findings])
        self._notes = (
            *self._uncertainty.notes,
            *notes.duplicate_notes(lane, given),
            *notes.priority_notes(given, self._reader),
        )
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
                self._rows.blind += [rows] if finding.array == "resets" else []
        generator = any("generator" in finding.message for finding in findings)
        generator &= "generator" in self._side_data
        if generator:
            self._side_data.remove("generator")
        return generator or len(self._rows.spans) > n_known

    def rebuild(self, target: AnyPath, *, skip_damaged: bool) -> LaneRepair:
        """Make a closed lane of what is sound, at `target`, which does not exist yet.

        `skip_damaged` keeps whole episodes after the damage, too. Raises CorruptStoreError if the
        lane has changed since it was verified.
        """
        reader = self._reader
        base, head = reader.base, reader.head
        damaged = merged(self._rows.spans, base, head)
        stop = damaged[0][0] if damaged else head
        if base and stop < base + layout.CONTEXT_ROWS:  # nothing that could be sampled
            stop = 0
        later = whole_episodes(reader, damaged, stop, merged(self._rows.blind, base, head))
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
        spans = [(base, stop)]
        if skip_damaged and later:
            append_episodes(reader, target, later)
            kept += n_later
            spans += later
        return LaneRepair(
            self.name,
            kept,
            head - base - kept + self._uncertainty.lost,
            0 if skip_damaged else n_later,
            damaged,
            skip_damaged and bool(later),
            at_least=not self._uncertainty.known,
            untrusted=self._uncertainty.untrusted,
            notes=(*self._notes, *notes.unchecked_notes(self._unchecked, spans, reader)),
        )


def _open(
    lane: AnyPath, findings: Sequence[Finding], spare: AnyPath, root: Mapping[str, Any] | None
) -> tuple[LaneReader, Sequence[Finding], Uncertainty]:
    """Open a lane, or a stand-in for it, with what is wrong with that, and what it cannot tell."""
    if not any(
        finding.file.endswith("zarr.json") or ".live" in finding.file for finding in findings
    ):
        with contextlib.suppress(MmreplayError):
            reader = LaneReader(lane)
            if not findings or all(fits(lane, spec) for spec in reader.specs.values()):
                return reader, findings, Uncertainty(untrusted=reader.untrusted)
    trust_name = not any(finding.message.startswith("name:") for finding in findings)
    try:
        uncertainty = stand_in(
            lane, spare, root, trust_first=not _about_first(findings), trust_name=trust_name
        )
        return LaneReader(spare), verify(str(spare)).findings, uncertainty
    except (CorruptStoreError, FormatError) as error:
        text = str(error).replace(str(spare), str(lane))  # that will be gone, and is a copy of it
        text = text.removeprefix(f"{lane}: ")
        raise CorruptStoreError(f"{lane}: cannot be repaired: {text}") from error


def _about_first(findings: Iterable[Finding]) -> bool:
    """Whether a finding casts doubt on the first row that zarr.json names."""
    return any(
        finding.message.startswith("first:") or "expected no chunk file" in finding.message
        for finding in findings
    )
