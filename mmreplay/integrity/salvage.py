"""One lane of a damaged store: which of its rows are sound, and a new lane of those.

Invariant: the damaged lane is only read; no row comes along that a finding speaks of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmreplay import files, format
from mmreplay.background import Background
from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import ArraySpec
from mmreplay.integrity.chunks import ANOTHER, NO_CHECKSUM, WRONG_CHECKSUM
from mmreplay.integrity.layouts import fits
from mmreplay.integrity.mending import Doubts, stand_in
from mmreplay.integrity.report import Finding
from mmreplay.integrity.store import verify
from mmreplay.lane import Writer
from mmreplay.reader import LaneReader
from mmreplay.schema import FRAME
from mmreplay.transplant import BESIDE, empty_lane, is_intact, read_rows, transplant

__all__ = ["LaneRepair", "Patient"]

# What can be made anew of the rows, or is about none.
_DERIVED = ("episodes", "checksums", "priorities")

Span = tuple[int, int]


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

    def to_json(self) -> dict[str, Any]:
        """The attributes as a dict of JSON values."""
        damaged = [list(one) for one in self.damaged]
        return {**dataclasses.asdict(self), "damaged": damaged, "notes": list(self.notes)}


class Patient:
    """A lane that may be damaged, open for reading.

    Args:
        lane: its directory.
        name: the directory's name in a store of many lanes; empty in a store of one.
        findings: what `verify` has found in it.
        spare: where a stand-in may be made.
        root: attributes.mmreplay of the store of many lanes, if it is one.

    Raises:
        CorruptStoreError: nothing tells what is in it.
        DiskFullError: no room.

    Attributes:
        name: as given.
    """

    def __init__(
        self,
        lane: Path,
        name: str,
        findings: Sequence[Finding],
        spare: Path,
        root: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        self._same_until = 0
        self._reader, findings, self._doubts = _open(lane, findings, spare, root)
        self._beside = set(BESIDE)
        if any("generator" in one.message for one in findings):
            self._beside.remove("generator")
        narrow = {one.file for one in findings if _is_narrow(one)}
        narrow -= {one.file for one in findings if one.message == ANOTHER}
        self._spans: list[Span] = []
        self._blind: list[Span] = []  # those in which nobody knows where an episode begins
        for one in findings:
            # What is wrong with a shard as a whole is explained by what is wrong in it.
            if one.file not in narrow or _is_narrow(one):
                spans = self._rows_of(one)
                self._spans += spans
                self._blind += spans if one.array == "resets" else []
        self._unsummed = {
            (one.array, one.rows[0] // self._reader.specs[one.array].chunk_rows)
            for one in findings
            if one.message == WRONG_CHECKSUM and one.rows is not None
            if one.array in self._reader.specs
        }
        self._anew = {
            (one.array, one.rows[0] // self._reader.specs[one.array].chunk_rows)
            for one in findings
            if one.file in narrow and _is_narrow(one) and one.rows is not None
            if one.rows[0] < self._reader.base
        }

    def _rows_of(self, finding: Finding) -> list[Span]:
        """The rows that a finding says are damaged."""
        if finding.rows is None or finding.array.partition("/")[0] in _DERIVED:
            return []
        if finding.message in {NO_CHECKSUM, WRONG_CHECKSUM}:
            return []  # all other rules were checked, and it gets one
        spec, reader = self._reader.specs.get(finding.array), self._reader
        if spec is not None and spec.is_raw and reader.is_closed:
            chunk = finding.rows[0] // spec.chunk_rows
            if (chunk + 1) * spec.chunk_rows > reader.head and self._has_sum(spec, chunk):
                return []
        return [finding.rows]

    def _has_sum(self, spec: ArraySpec, chunk: int) -> bool:
        """Whether the rows of the last chunk file are those that its checksum is of."""
        try:
            return is_intact(self._reader, spec, chunk, strict=True)
        except (MmreplayError, OSError):
            return False

    def lose(self, findings: Iterable[Finding]) -> bool:
        """Take what was found in the lane made of this one for damaged.

        Returns:
            False if that was known, so that to try again is of no use.
        """
        known = len(self._spans)
        for one in findings:
            if one.rows and one.rows[0] < self._same_until and one.rows not in self._spans:
                self._spans.append(one.rows)
                self._blind += [one.rows] if one.array == "resets" else []
        beside = "generator" in self._beside and any("generator" in one.message for one in findings)
        if beside:
            self._beside.remove("generator")
        return beside or len(self._spans) > known

    def rebuild(self, target: Path, *, skip_damaged: bool) -> LaneRepair:
        """Make a closed lane of what is sound.

        Args:
            target: a directory that does not exist yet.
            skip_damaged: keep whole episodes after the damage, too.

        Raises:
            CorruptStoreError: the lane has changed since it was verified.
            DiskFullError: no room.
        """
        reader = self._reader
        base, head = reader.base, reader.head
        damaged = _merged(self._spans, base, head)
        stop = damaged[0][0] if damaged else head
        if base and stop < base + format.CONTEXT_ROWS:  # nothing that could be sampled
            stop = 0
        later = _episodes(reader, damaged, stop, _merged(self._blind, base, head))
        n_later = sum(end - start for start, end in later)
        if stop > 0:
            transplant(
                reader,
                target,
                stop,
                beside=self._beside,
                anew=self._anew,
                unsummed=self._unsummed,
            )
        else:
            empty_lane(target, reader.schema, reader.specs, reader.metadata)
        self._same_until = stop  # rows after it have been numbered anew
        kept = max(stop - base, 0)
        if skip_damaged and later:
            _append(reader, target, later)
            kept += n_later
        return LaneRepair(
            self.name,
            kept,
            head - base - kept + self._doubts.lost,
            0 if skip_damaged else n_later,
            damaged,
            skip_damaged and bool(later),
            at_least=not self._doubts.known,
            untrusted=self._doubts.untrusted,
            notes=self._doubts.notes,
        )


def _open(
    lane: Path, findings: Sequence[Finding], spare: Path, root: Mapping[str, Any] | None
) -> tuple[LaneReader, Sequence[Finding], Doubts]:
    """Open a lane, or a stand-in for it, with what is wrong with that, and what it cannot tell."""
    if not any(one.file.endswith("zarr.json") or ".live" in one.file for one in findings):
        with contextlib.suppress(MmreplayError):
            reader = LaneReader(lane)
            if not findings or all(fits(lane, spec) for spec in reader.specs.values()):
                return reader, findings, Doubts(untrusted=reader.untrusted)
    trust_name = not any(one.message.startswith("name:") for one in findings)
    try:
        doubts = stand_in(
            lane, spare, root, trust_first=not _about_first(findings), trust_name=trust_name
        )
        return LaneReader(spare), verify(spare).findings, doubts
    except (CorruptStoreError, FormatError) as error:
        raise CorruptStoreError(f"{lane}: cannot be repaired: {error}") from error


def _is_narrow(finding: Finding) -> bool:
    """Whether a finding is of inner chunks, each of which has a checksum of its own."""
    return finding.message.startswith("inner chunk ")


def _about_first(findings: Iterable[Finding]) -> bool:
    return any(
        one.message.startswith("first:") or "expected no chunk file" in one.message
        for one in findings
    )


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


def _episodes(
    reader: LaneReader, damaged: Sequence[Span], start: int, blind: Sequence[Span]
) -> list[Span]:
    """[start, stop) of the episodes from row `start` on that are whole outside the damaged rows.

    Args:
        reader: the lane.
        damaged: rows, ascending.
        start: episodes that begin before are left out.
        blind: damaged rows whose reset bits are.
    """
    out: list[Span] = []
    edges = [reader.base, *(row for span in damaged for row in span), reader.head]
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop <= first or stop <= start:
            continue
        # The last episode before damage may go on in it, unless another begins right there.
        is_known = stop < reader.head and not any(low <= stop < high for low, high in blind)
        bounds = reader.resets(first, stop + is_known).tolist()
        if stop == reader.head:
            bounds.append(stop)
        out += [one for one in itertools.pairwise(bounds) if one[0] >= start]
    return out


def _append(reader: LaneReader, target: Path, episodes: Sequence[Span]) -> None:
    """Append episodes to a closed lane."""
    try:
        with Writer(target, background=Background(0)) as writer:
            for start, stop in episodes:
                _append_episode(reader, writer, start, stop)
    except BaseException:
        files.remove_tree(target)
        raise


def _append_episode(reader: LaneReader, writer: Writer, start: int, stop: int) -> None:
    extras = reader.schema.extra_paths
    before: dict[str, Any] = {}
    for row, (frame, values) in enumerate(_rows(reader, start, stop), start):
        if not before:
            writer.reset(frame)
        else:
            ended, is_last = not before["non_terminals"], row == stop - 1
            writer.step(
                before["actions"],
                before["rewards"],
                frame,
                terminated=ended and is_last,
                truncated=not ended and is_last,
                life_lost=ended,
                **{name: before[path] for name, path in extras.items()},
            )
        before = values


def _rows(reader: LaneReader, start: int, stop: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The frame of each row, as a writer takes it, and its other values by path."""
    schema = reader.schema
    columns = (read_rows(reader, spec, start, stop) for spec in reader.specs.values())
    rows = (itertools.chain.from_iterable(part for _, part in parts) for parts in columns)
    for values in zip(*rows, strict=True):
        row = dict(zip(reader.specs, values, strict=True))
        frames = {key: row[path] for key, path in schema.frame_paths.items()}
        yield frames if schema.is_dict else frames[FRAME], row
