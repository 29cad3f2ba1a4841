"""What the page shows of a whole store: its contents, episodes and distributions; arrays as bytes.

Invariant: every packed array starts at a multiple of eight bytes, so that the page needs no copies.
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.settings import Settings
from mmreplay.errors import MmreplayError, printable
from mmreplay.format.episode_fields import STARTED
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.pictures import limits_of
from mmreplay.reading.info import action_names, shared_metadata
from mmreplay.reading.store import Store
from mmreplay.viewer.episode import kept_episodes
from mmreplay.viewer.shown_columns import (
    ShownColumn,
    has_priorities,
    read_priorities,
    shown_columns,
)
from mmreplay.viewer.viewed_store import finite

_ENDS = ("open", "terminated", "truncated")
_SEEN = 16  # frames that give the range of values that are not bytes
_IMAGE_AXES = 2
_SPREAD_IDS = 100_000
_MOST_VALUES = 32
_MOST_ACTIONS = 512
_MOST_PARTS = 8
_BINS = 40
_LARGEST = 1e300  # differences of larger values may be infinite


def describe(store: Store) -> dict[str, Any]:
    """The contents of a store, as JSON values."""
    readers = store.live.readers
    columns = shown_columns(store.schema)
    images = [one for one in columns if one.kind == "frame" and len(one.shape) >= _IMAGE_AXES]
    return {
        "name": store.path.name,
        "uuid": readers[0].metadata["uuid"],
        "env": shared_metadata(store.live.readers) or {},
        "action_names": action_names(store.live)[:_MOST_ACTIONS] or None,
        "padding": store.padding,
        "stack": store.schema.stacks()[0] or 1,
        "lanes": [
            {"name": reader.metadata.get("name"), "environments": reader.n} for reader in readers
        ],
        "columns": [dataclasses.asdict(one) for one in columns],
        "ranges": {one.number: _range(store, one) for one in images},
        "has_priorities": has_priorities(store),
    }


def _range(store: Store, column: ShownColumn) -> tuple[float, float]:
    """The values that are shown as black and white, from a few frames at even distances."""
    if column.dtype == "uint8":
        return 0, 255
    try:
        found = store.live.gather(_even(_SEEN), store.live.gatherer(Settings(stack=None)))
    except MmreplayError:  # some are damaged
        return 0, 1
    frames = found.observation
    shown = np.asarray(frames[column.name] if isinstance(frames, dict) else frames)
    low, high = limits_of([shown]) or (0, 255)
    return low, high if high > low else low + 1


def _even(most: int) -> Callable[[Any], Ids]:
    """Draws at most this many transitions at even distances."""

    def draw(index: Any) -> Ids:
        n = index.n_transitions
        ids: Ids = index.at(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
        return ids

    return draw


def episode_table(store: Store, kept: tuple[npt.NDArray[np.void], Ids] | None = None) -> bytes:
    """All episodes, packed: lane, row, length, return, end and evicted steps, (n,) each.

    An end is 0 for open, 1 for terminated, 2 for truncated. The order is that of `kept_episodes`,
    whose result may be given as `kept`. ``fields`` are the names of the episodes' own, of a value
    each; ``texts`` has the texts, ascending, that a field has the numbers of.
    """
    found, evicted = kept_episodes(store) if kept is None else kept
    ends = store.endings(found)
    codes = np.zeros(found.size, np.uint8)
    for code, name in enumerate(_ENDS):
        codes[ends == name] = code
    fields: dict[str, Array] = {}
    texts: dict[str, list[str]] = {}
    for name in store.live.fields:
        values = found[name]
        if values.dtype.kind == "U":
            distinct, values = np.unique(values, return_inverse=True)
            texts[name] = [printable(one) for one in distinct.tolist()]
        if name != STARTED and values.ndim == 1:
            fields[name] = values.astype(np.float64)
    return pack(
        {f"field.{name}": values for name, values in fields.items()}
        | {
            "row": (found["id"] & ROW_MASK).astype(np.float64),
            "return": found["return"].astype(np.float64),
            "length": found["length"].astype(np.float64),
            "evicted": evicted.astype(np.float64),
            "lane": (found["id"] >> LANE_SHIFT).astype(np.int32),
            "end": codes,
        },
        fields=list(fields),
        texts=texts,
    )


def spread_samples(store: Store) -> dict[str, Any]:
    """Rewards, actions and priorities of at most 100,000 transitions at even distances."""

    def read() -> tuple[Any, dict[str, Any]]:
        lanes = store.live.follow()
        ids = _even(_SPREAD_IDS)(lanes.index)
        return lanes, {
            "of": lanes.index.n_transitions,
            "names": names,
            "ids": ids,
            "reward": lanes.columns["rewards"].take(ids),
            "action": lanes.columns["actions"].take(ids),
        }

    names = None if store.schema.action.shape else action_names(store.live)[:_MOST_ACTIONS] or None
    out = store.live.retrying(read)
    ids = out.pop("ids")
    priorities = read_priorities(store, ids) if has_priorities(store) else np.empty(0)
    known = priorities[np.isfinite(priorities) & (priorities > 0)]
    return {**out, "n": int(ids.size), "priority": np.log10(known)}


def distributions(samples: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Histograms of several stores on the same axes; None for one that cannot be read.

    Each has a title, `values` or `edges`, one list of `counts` per store, and perhaps `names`.
    """
    known = [one or {} for one in samples]
    charts = [_chart("Rewards", [one.get("reward") for one in known])]
    actions = [_flat(one.get("action")) for one in known]
    named = [one["names"] for one in known if "names" in one]
    names = named[0] if named and all(one == named[0] for one in named) else None
    parts = max(one.shape[1] for one in actions)
    for part in range(min(parts, _MOST_PARTS)):
        title = "Actions" if parts == 1 else f"Actions [{part}]"
        columns = [one[:, part] if part < one.shape[1] else None for one in actions]
        charts.append({**_chart(title, columns, action=True), "names": names})
    charts.append(_chart("Priorities, log10", [one.get("priority") for one in known]))
    return {
        "stores": [{"n": one.get("n", 0), "of": one.get("of", 0)} for one in known],
        "charts": [one for one in charts if any(sum(counts) for counts in one["counts"])],
    }


def _flat(actions: Array | None) -> Array:
    if actions is None:
        return np.empty((0, 0))
    out: Array = actions.reshape(len(actions), math.prod(actions.shape[1:]))
    return out


def _chart(title: str, columns: Sequence[Array | None], *, action: bool = False) -> dict[str, Any]:
    finite_ones = [_finite_values(one) for one in columns]
    together = np.concatenate([*finite_ones, np.empty(0)])
    distinct = np.unique(together)
    kinds = {one.dtype.kind for one in columns if one is not None}
    if distinct.size <= _MOST_VALUES or (
        action and kinds <= set("iub") and distinct.size <= _MOST_ACTIONS
    ):
        places = [np.searchsorted(distinct, one) for one in finite_ones]
        counts = [np.bincount(one, minlength=distinct.size) for one in places]
        about: dict[str, Any] = {"values": finite(distinct)}
    else:
        edges = np.linspace(together.min(), together.max(), _BINS + 1)
        if (np.diff(edges) <= 0).any():  # too close together for bins
            edges = edges[[0, -1]]
        counts = [np.histogram(one, edges)[0] for one in finite_ones]
        about = {"edges": finite(edges)}
    return {"title": title, "counts": [c.tolist() for c in counts], **about}


def _finite_values(values: Array | None) -> npt.NDArray[np.float64]:
    out = np.empty(0) if values is None else values.astype(np.float64)
    return out[np.abs(out) < _LARGEST]


_ALIGN = 8


def pack(arrays: Mapping[str, Array], **about: Any) -> bytes:
    """Arrays and JSON values as bytes, float16 as float32 and bool as uint8; see static/net.js.

    The header is ``{"arrays": [[name, dtype, shape], ...], **about}``.
    """
    sent = {name: _as_sent(array) for name, array in arrays.items()}
    listed = [[name, array.dtype.name, array.shape] for name, array in sent.items()]
    header = json.dumps({"arrays": listed, **about}, allow_nan=False).encode()
    header += b" " * (-(4 + len(header)) % _ALIGN)
    parts = [struct.pack("<I", len(header)), header]
    for array in sent.values():
        data = array.tobytes()
        parts += [data, bytes(-len(data) % _ALIGN)]
    return b"".join(parts)


def _as_sent(array: Array) -> Array:
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
