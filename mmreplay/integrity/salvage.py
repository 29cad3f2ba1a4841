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

from mmreplay import columns, files, format
from mmreplay.background import Background
from mmreplay.checksums import stored_checksum
from mmreplay.errors import CorruptStoreError, FormatError, MmreplayError
from mmreplay.format import ArraySpec
from mmreplay.integrity.chunks import ANOTHER, NO_CHECKSUM, WRONG_CHECKSUM
from mmreplay.integrity.layouts import fits, kept_files
from mmreplay.integrity.mending import Doubts, stand_in
from mmreplay.integrity.report import Finding, quoted
from mmreplay.integrity.store import TWIN, verify
from mmreplay.lane import Writer
from mmreplay.reader import LaneReader
from mmreplay.schema import FRAME
from mmreplay.transplant import BESIDE, empty_lane, is_intact, read_rows, transplant

__all__ = ["LaneRepair", "Patient"]

# What can be made anew of the rows, or is about none.
_DERIVED = ("episodes", "checksums", "priorities")
_SUMS = "checksums/"
_FEW = 4  # places that are named in a sentence

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
        found = list(findings)
        self._reader, findings, self._doubts = _open(lane, findings, spare, root)
        self._beside = set(BESIDE)
        if any("generator" in one.message for one in findings):
            self._beside.remove("generator")
        narrow = {one.file for one in findings if _is_narrow(one)}
        narrow -= {one.file for one in findings if one.message == ANOTHER}
        self._unchecked = _unchecked(self._reader, [*found, *findings])
        self._notes = (
            *self._doubts.notes,
            *_twin(lane, found),
            *_lost_priorities(found, self._reader),
        )
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
        spans = [(base, stop)]
        if skip_damaged and later:
            _append(reader, target, later)
            kept += n_later
            spans += later
        return LaneRepair(
            self.name,
            kept,
            head - base - kept + self._doubts.lost,
            0 if skip_damaged else n_later,
            damaged,
            skip_damaged and bool(later),
            at_least=not self._doubts.known,
            untrusted=self._doubts.untrusted,
            notes=(*self._notes, *self._about_unchecked(spans)),
        )

    def _about_unchecked(self, kept: Sequence[Span]) -> Iterator[str]:
        """Which of the rows that were kept nothing but the rules could check."""
        kept = [one for one in kept if one[0] < one[1]]
        for path, unchecked in self._unchecked.items():
            pairs = itertools.product(unchecked, kept)
            spans = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs]
            spans = _merged(spans, self._reader.base, self._reader.head)
            if spans:
                which = (
                    "its rows" if spans == _merged(kept, 0, self._reader.head) else _named(spans)
                )
                yield (
                    f"{path}: {which} had no checksum any more; they are kept as they stand, and "
                    f"may not be what was written"
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
        text = str(error).replace(str(spare), str(lane))  # that will be gone, and is a copy of it
        raise CorruptStoreError(f"{lane}: cannot be repaired: {text}") from error


def _unchecked(reader: LaneReader, findings: Iterable[Finding]) -> dict[str, list[Span]]:
    """The rows of each array whose chunk files lost their checksum, by what findings say."""
    named = {
        one.array.removeprefix(_SUMS)
        for one in findings
        if one.message == NO_CHECKSUM or one.array.startswith(_SUMS)
    }
    out: dict[str, list[Span]] = {}
    for path in named & reader.specs.keys():
        spec = reader.specs[path]
        stop = reader.head
        if not reader.is_closed:  # the others have none yet
            stop = max(stop - 1, 0) if spec.is_raw else min(reader.tail_start(), stop)
            stop -= stop % spec.chunk_rows
        # Those that there are: how many there should be may be anything in a damaged store.
        chunks = [one for one in kept_files(reader.path, spec) if one * spec.chunk_rows < stop]
        out[path] = [
            (chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows)
            for chunk in chunks
            if not _may_have_sum(reader, spec, chunk)
        ]
    return dict(sorted(out.items()))


def _may_have_sum(reader: LaneReader, spec: ArraySpec, chunk: int) -> bool:
    """Whether a finished chunk file has a checksum; in an open lane some get theirs later."""
    sums = format.checksum_spec(spec.path)
    try:
        known = stored_checksum(reader.path, spec, chunk) > 0
        file = columns.chunk_path(reader.path, sums, chunk // sums.chunk_rows)
        return known or (not reader.is_closed and file.exists())
    except (CorruptStoreError, OSError):
        return False


def _named(spans: Sequence[Span]) -> str:
    texts = [f"{start:,} to {stop - 1:,}" for start, stop in spans[:_FEW]]
    more = f" and {len(spans) - _FEW:,} more places" if len(spans) > _FEW else ""
    return f"rows {', '.join(texts)}{more}"


def _twin(lane: Path, findings: Iterable[Finding]) -> Iterator[str]:
    """What to say of a lane that has the uuid of another one."""
    for one in findings:
        if one.message.startswith(TWIN):
            other = one.message.rpartition(" ")[2]
            yield (
                f"was a copy of {other} when it was made (the same uuid): rows that both have are "
                f"in the store twice; if it has none of its own, take it out with "
                f"`rm -r {quoted(lane)}`, and if other lanes come after it, put an empty one in "
                f"its place with `mmreplay repair {quoted(lane.parent)}`"
            )


def _lost_priorities(findings: Iterable[Finding], reader: LaneReader) -> Iterator[str]:
    """What to say of priorities whose file is damaged or gone; of their document others speak."""
    lost = [one.rows or (0, reader.head) for one in findings if one.array == "priorities"]
    lost = _merged(lost, reader.base, reader.head)
    if lost and not any(one.file == "priorities/zarr.json" for one in findings):
        yield f"priorities: those of {_named(lost)} are lost; these transitions count as new ones"


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
    found = (read_rows(reader, spec, start, stop) for spec in reader.specs.values())
    rows = (itertools.chain.from_iterable(part for _, part in parts) for parts in found)
    for values in zip(*rows, strict=True):
        row = dict(zip(reader.specs, values, strict=True))
        frames = {key: row[path] for key, path in schema.frame_paths.items()}
        yield frames if schema.is_dict else frames[FRAME], row
