"""What a repair says of a lane besides its rows: what could not be checked, or is lost.

Invariant: the lane is only read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mmreplay.errors import CorruptStoreError
from mmreplay.format import layout
from mmreplay.format.layout import ArraySpec
from mmreplay.maintenance.repair.layouts import kept_files
from mmreplay.maintenance.repair.spans import Span, merged
from mmreplay.maintenance.verify.chunk_files import NO_CHECKSUM
from mmreplay.maintenance.verify.report import Finding, quoted
from mmreplay.maintenance.verify.store import DUPLICATE
from mmreplay.reading.log_reader import LogReader
from mmreplay.storage import chunk_files
from mmreplay.storage.checksums import stored_checksum
from mmreplay.system.held_directories import AnyPath

_SUMS = "checksums/"
_FEW = 4  # places that are named in a sentence


def unchecked_rows(reader: LogReader, findings: Iterable[Finding]) -> dict[str, list[Span]]:
    """The rows of each array whose chunk files lost their checksum, by what findings say."""
    arrays = {
        finding.array.removeprefix(_SUMS)
        for finding in findings
        if finding.message == NO_CHECKSUM or finding.array.startswith(_SUMS)
    }
    unchecked: dict[str, list[Span]] = {}
    for path in arrays & reader.specs.keys():
        spec = reader.specs[path]
        stop = reader.head
        if not reader.is_closed:  # the others have none yet
            stop = max(stop - 1, 0) if spec.is_raw else min(reader.tail_start(), stop)
            stop -= stop % spec.chunk_rows
        # Of the files that exist: how many there should be may be anything in a damaged store.
        chunks = [n for n in kept_files(reader.path, spec) if n * spec.chunk_rows < stop]
        unchecked[path] = [
            (chunk * spec.chunk_rows, (chunk + 1) * spec.chunk_rows)
            for chunk in chunks
            if not _may_have_sum(reader, spec, chunk)
        ]
    return dict(sorted(unchecked.items()))


def _may_have_sum(reader: LogReader, spec: ArraySpec, chunk: int) -> bool:
    """Whether a finished chunk file has a checksum; in an open lane some get theirs later."""
    sums = layout.checksum_spec(spec.path)
    try:
        known = stored_checksum(reader.path, spec, chunk) > 0
        file = chunk_files.chunk_path(reader.path, sums, chunk // sums.chunk_rows)
        return known or (not reader.is_closed and file.exists())
    except (CorruptStoreError, OSError):
        return False


def unchecked_notes(
    unchecked: Mapping[str, Sequence[Span]], kept: Sequence[Span], reader: LogReader
) -> Iterator[str]:
    """What to say of rows that were kept though nothing but the rules could check them."""
    kept = [span for span in kept if span[0] < span[1]]
    for path, without in unchecked.items():
        pairs = itertools.product(without, kept)
        spans = [(max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs]
        spans = merged(spans, reader.base, reader.head)
        if spans:
            which = "its rows" if spans == merged(kept, 0, reader.head) else _in_words(spans)
            yield (
                f"{path}: {which} had no checksum any more; they are kept as they stand, and "
                f"may not be what was written"
            )


def _in_words(spans: Sequence[Span]) -> str:
    """Rows, the first few of them by their numbers."""
    texts = [f"{start:,} to {stop - 1:,}" for start, stop in spans[:_FEW]]
    more = f" and {len(spans) - _FEW:,} more places" if len(spans) > _FEW else ""
    return f"rows {', '.join(texts)}{more}"


def duplicate_notes(lane: AnyPath, findings: Iterable[Finding]) -> Iterator[str]:
    """What to say of a lane that has the uuid of another one."""
    for finding in findings:
        if finding.message.startswith(DUPLICATE):
            other = finding.message.rpartition(" ")[2]
            yield (
                f"was a copy of {other} when it was made (the same uuid): rows that both have are "
                f"in the store twice; if it has none of its own, take it out with "
                f"`rm -r {quoted(str(lane))}`, and if other lanes come after it, put an empty one "
                f"in its place with `mmreplay repair {quoted(str(lane.parent))}`"
            )


def priority_notes(findings: Iterable[Finding], reader: LogReader) -> Iterator[str]:
    """What to say of priorities whose file is damaged or lost; `stand_in` tells of their layout."""
    about = [finding for finding in findings if finding.array == "priorities"]
    lost = [finding.rows or (0, reader.head) for finding in about]
    lost = merged(lost, reader.base, reader.head)
    if lost and not any(finding.file == "priorities/zarr.json" for finding in findings):
        rows = _in_words(lost)
        yield f"priorities: those of {rows} are lost; these transitions count as new ones"
