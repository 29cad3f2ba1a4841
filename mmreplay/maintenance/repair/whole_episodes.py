"""The whole episodes of a damaged lane outside the damage, appended to another lane.

Invariant: the damaged lane is only read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from mmreplay.maintenance.copy_lane import read_rows
from mmreplay.maintenance.repair.spans import Span
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.schema import FRAME
from mmreplay.system import durable_writes
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.background import Background
from mmreplay.writing.writer import Writer


def whole_episodes(
    reader: LaneReader, damaged: Sequence[Span], start: int, blind: Sequence[Span]
) -> list[Span]:
    """[start, stop) of the episodes from row `start` on that are whole outside the damaged rows.

    `damaged` is ascending; `blind` are those of them whose reset bits are damaged.
    """
    episodes: list[Span] = []
    edges = [reader.base, *(row for span in damaged for row in span), reader.head]
    for first, stop in zip(edges[::2], edges[1::2], strict=True):
        if stop <= first or stop <= start:
            continue
        # The last episode before damage may go on in it, unless another begins right there.
        is_known = stop < reader.head and not any(low <= stop < high for low, high in blind)
        bounds = reader.resets(first, stop + is_known).tolist()
        if stop == reader.head:
            bounds.append(stop)
        episodes += [span for span in itertools.pairwise(bounds) if span[0] >= start]
    return episodes


def append_episodes(reader: LaneReader, target: AnyPath, episodes: Sequence[Span]) -> None:
    """Append episodes to a closed lane."""
    try:
        with Writer(target, background=Background(0)) as writer:
            for start, stop in episodes:
                _append_episode(reader, writer, start, stop)
    except BaseException:
        durable_writes.remove_tree(target)
        raise


def _append_episode(reader: LaneReader, writer: Writer, start: int, stop: int) -> None:
    """Append one episode: the actions of a row are those of the step that ends at the next one."""
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
