"""One lane of a damaged store: makes a new lane of the rows that are sound.

Invariant: the damaged lane is only read; no row with a finding is copied. An episode that is not
whole in a stretch of sound rows begins or ends there, as truncated; its final observation is the
frame of the row after the stretch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mmreplay.batches.runs import BLOCK_BYTES
from mmreplay.format import layout
from mmreplay.ids import Array
from mmreplay.maintenance.copy_lane import copy_lane, durable_part, empty_lane, read_rows
from mmreplay.maintenance.episode_runs import row_bytes
from mmreplay.maintenance.repair.damage import Damage, blocks
from mmreplay.maintenance.verify.report import Span, as_json
from mmreplay.reading.lane_reader import LaneReader
from mmreplay.reading.store import Store
from mmreplay.schema import FRAME
from mmreplay.storage import chunk_files
from mmreplay.system.held_directories import AnyPath
from mmreplay.writing.create import AnyWriter, open_writer


@dataclasses.dataclass(frozen=True, slots=True)
class LaneRepair:
    """What became of one lane.

    Attributes:
        lane: its directory's name; empty in a store of one lane.
        kept: transitions, of those that were there before.
        lost: transitions, as far as they can be counted.
        beyond: sound ones among the lost, which ``skip_damaged`` would keep.
        damaged: [start, stop) of the rows that were found damaged.
        renumbered: whether transitions that were kept have other ids now.
        missing: whether the lane was gone or unreadable; an empty one replaces it, so that ids in
            later lanes stay.
        untrusted: rows after the last flush of a writer that died, which were not kept, as they
            cannot be trusted here or after a restart; not counted in `lost`.
    """

    lane: str
    kept: int
    lost: int
    beyond: int
    damaged: list[Span]
    renumbered: bool
    missing: bool = False
    untrusted: int = 0

    to_json = as_json


def rebuild_lane(damage: Damage, name: str, target: AnyPath, *, skip_damaged: bool) -> LaneRepair:
    """Make a closed lane of the rows before the damage; `skip_damaged` appends later ones."""
    reader, first = damage.reader, damage.first()
    base, stretches = durable_part(reader, reader.rows).base, [*damage.stretches()]
    stop = stretches[0][1] if stretches and stretches[0][0] == reader.base else 0
    if base and stop < base + layout.CONTEXT_ROWS:
        stop = 0  # nothing that could be sampled
    later = [(max(start, first), end) for start, end in stretches if start >= stop and end > first]
    if stop > 0:
        finals = damage.finals_of(base, stop)
        copy_lane(reader, target, stop, finals=finals, remade=damage.remade)
    else:
        empty_lane(target, reader)
    if skip_damaged and later:
        _append_rows(target, damage, later)
    kept = n_transitions([target])
    lost = max(damage.n_transitions([(first, reader.head)]) - kept, 0)
    beyond = damage.n_transitions(later)
    return LaneRepair(
        name,
        kept,
        lost,
        0 if skip_damaged else min(beyond, lost),
        damage.found(),
        skip_damaged and bool(later),
        untrusted=reader.rows.untrusted,
    )


def n_transitions(lanes: Sequence[AnyPath]) -> int:
    """How many can be sampled."""
    if not lanes:
        return 0
    with Store(lanes) as store:
        return len(store)


def _append_rows(lane: AnyPath, damage: Damage, stretches: Iterable[Span]) -> None:
    size = max(BLOCK_BYTES // (row_bytes(damage.reader.schema) * damage.reader.n), 1)
    writer = open_writer(lane, {}, 0)
    try:
        for start, stop in stretches:
            for low, high in blocks([(start, stop)], size):
                _append(writer, damage, low, high, begins=low == start, ends=high == stop)
        writer.close()
    except BaseException:
        writer._release_unclosed()  # noqa: SLF001 (the lane is removed)
        raise


def _append(
    writer: AnyWriter, damage: Damage, start: int, stop: int, *, begins: bool, ends: bool
) -> None:
    """Append rows [start, stop): those at the beginning or end of a stretch, or between."""
    reader, schema, n = damage.reader, damage.reader.schema, damage.reader.n
    # If no episode runs on, the frames of the next row may be damaged.
    has_next = damage.runs(stop - 1)
    frames = {
        key: _read(reader, path, start, stop + has_next) for key, path in schema.frame_paths.items()
    }
    places, _, _ = damage.finals_of(start, stop)
    first = int(places.min(initial=reader.finals.head))
    finals = {
        key: _read(reader, path, first, int(places.max(initial=first - 1)) + 1, final=True)
        for key, path in schema.frame_paths.items()
    }
    actions, rewards = (_read(reader, path, start, stop) for path in ("actions", "rewards"))
    extras = {
        name: _read(reader, path, start, stop)
        if name in schema.extras
        else _values(damage, path, start, stop)
        for name, path in schema.extra_paths.items()
    }
    steps, going_on = damage.read("step", start, stop), damage.read("non_terminals", start, stop)
    has_axis = writer.files.environments is not None

    def given(value: Array) -> Any:
        return value if has_axis else value[0]

    def observation(of: dict[str, Array]) -> Any:
        values = {key: given(one) for key, one in of.items()}
        return values if schema.is_dict else values[FRAME]

    for row in range(stop - start):
        there = steps[row] > 0
        new = there & ((steps[row] == 1) | (begins and row == 0))
        over = there & (ends and row == stop - start - 1)
        after = {key: one[min(row + 1, len(one) - 1)].copy() for key, one in frames.items()}
        places, ids, _ = damage.finals_of(start + row, start + row + 1)
        over[ids % n] = True
        for key, one in finals.items():
            after[key][ids % n] = one[places - first]
        done = there & (going_on[row] == 0)
        if new.any():
            now = observation({key: one[row] for key, one in frames.items()})
            writer.reset(now, *([new] if has_axis else []))
            which = new.nonzero()[0]
            firsts = (start + row + 1 - steps[row, which]) * n + which
            writer._episodes.reset(which, damage.fields_of(firsts))  # noqa: SLF001 (as stored)
        writer.step(
            given(actions[row]),
            given(rewards[row]),
            observation(after),
            given(over & done),
            given(over & ~done),
            life_lost=given(done & ~over),
            **({"mask": there} if has_axis else {}),
            **{name: given(one[row]) for name, one in extras.items()},
        )


def _read(reader: LaneReader, path: str, start: int, stop: int, *, final: bool = False) -> Array:
    """Rows of an array of the steps, (rows, n, ...), or of the final observations, (rows, ...)."""
    log = reader.finals if final else reader.rows
    spec = log.specs[path]
    empty: Array = np.empty((0, *spec.row_shape), spec.dtype)
    out = np.concatenate([empty, *(rows for _, rows in read_rows(reader, log, spec, start, stop))])
    return out if final or reader.environments is not None else out[:, None]


def _values(damage: Damage, path: str, start: int, stop: int) -> Array:
    """Rows of a column that may change, (rows, n, ...): 0 where they are lost, or never were."""
    log = damage.reader.rows
    spec = log.specs[path]
    out: Array = np.zeros((stop - start, *spec.row_shape), spec.dtype)
    for chunk in range(start // spec.chunk_rows, -(-stop // spec.chunk_rows)):
        file = chunk_files.chunk_path(log.path, spec, chunk)
        if (path, chunk) not in damage.remade and file.exists():
            low = max(chunk * spec.chunk_rows, start)
            high = min((chunk + 1) * spec.chunk_rows, stop)
            out[low - start : high - start] = chunk_files.read_rows(log, spec, low, high)
    return out if damage.reader.environments is not None else out[:, None]
