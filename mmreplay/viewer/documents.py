"""What the page asks of a whole store: what is in it, its episodes, how its numbers are spread."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.batches.settings import Settings
from mmreplay.errors import MmreplayError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.reading.info import environment
from mmreplay.reading.store import Store
from mmreplay.viewer.columns import ShownColumn, shown_columns
from mmreplay.viewer.episode import kept_episodes
from mmreplay.viewer.packed import pack
from mmreplay.viewer.priorities import has_priorities, read_priorities
from mmreplay.viewer.viewed_store import finite

_ENDS = ("open", "terminated", "truncated")
_KNOWN_RANGES = ((0, 1), (-1, 1), (0, 255), (-128, 127), (0, 65535))
_MOST_LOOKED_AT = 64
_LEAST_LOOKED_AT = 8
_BYTES_LOOKED_AT = 16 << 20
_IMAGE_AXES = 2
_SPREAD_IDS = 100_000
_MOST_VALUES = 32
_MOST_ACTIONS = 512
_MOST_PARTS = 8
_BINS = 40
_LARGEST = 1e300  # whose differences are numbers, too


def describe(store: Store) -> dict[str, Any]:
    """What is in a store, which hardly changes while the page is open; plain values."""
    readers = store.live.readers
    columns = shown_columns(store.schema)
    images = [one for one in columns if one.kind == "frame" and len(one.shape) >= _IMAGE_AXES]
    return {
        "name": store.path.name,
        "uuid": readers[0].metadata["uuid"],
        "env": environment(store.live) or {},
        "action_names": _action_names(store),
        "padding": store.padding,
        "stack": store.schema.stack_of() or 1,
        "lanes": [
            {"name": reader.metadata.get("name"), "environments": reader.n} for reader in readers
        ],
        "columns": [one.to_json() for one in columns],
        "ranges": {one.number: _range(store, one) for one in images},
        "has_priorities": has_priorities(store),
    }


def _action_names(store: Store) -> list[str] | None:
    about = environment(store.live)
    names = about.get("action_names") if isinstance(about, dict) else None
    if not isinstance(names, list) or not all(isinstance(one, str) for one in names):
        return None
    return names[:_MOST_ACTIONS]


def _range(store: Store, column: ShownColumn) -> tuple[float, float]:
    """What is painted black, and what white: the usual range that holds some frames, or theirs."""
    if column.dtype in ("uint8", "bool"):
        return (0, 1) if column.dtype == "bool" else (0, 255)
    low, high = math.inf, -math.inf
    gatherer = store.live.gatherer(Settings(stack=None))
    row_bytes = np.dtype(column.dtype).itemsize * math.prod(column.shape)
    n = min(max(_BYTES_LOOKED_AT // max(row_bytes, 1), _LEAST_LOOKED_AT), _MOST_LOOKED_AT)
    for part in np.linspace(0, 1, n).tolist():
        try:
            batch = store.live.gather(_ranked(part), gatherer)
        except MmreplayError:  # damaged here; others will do
            continue
        frames = batch.observation
        values = np.asarray(frames[column.name] if isinstance(frames, dict) else frames)
        values = values[np.isfinite(values)]
        if values.size:
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    if low > high:
        return 0, 1
    usual = (one for one in _KNOWN_RANGES if one[0] <= low and high <= one[1])
    return next(usual, (low, high if high > low else low + 1))


def _ranked(part: float) -> Callable[[Any], Ids]:
    """The id of the transition at this part of all."""

    def draw(index: Any) -> Ids:
        ranks = np.array([int(part * (index.n_transitions - 1))][: index.n_transitions], np.int64)
        out: Ids = index.at(ranks)
        return out

    return draw


def episode_table(store: Store, kept: tuple[npt.NDArray[np.void], Ids] | None = None) -> bytes:
    """All episodes, packed: lane, row, length, return, end and evicted, (n,) each.

    A row is that of the id: row * n + environment. An end is 0 for open, 1 for terminated, 2 for
    truncated. The whole episodes come first, in the order of their numbers, and of them 0 steps
    were evicted.
    `kept` is what `kept_episodes` gave; None asks it.
    """
    found, evicted = kept_episodes(store) if kept is None else kept
    ends = store.endings(found)
    codes = np.zeros(found.size, np.uint8)
    for code, name in enumerate(_ENDS):
        codes[ends == name] = code
    return pack(
        {
            "row": (found["id"] & ROW_MASK).astype(np.float64),
            "return": found["return"].astype(np.float64),
            "length": found["length"].astype(np.float64),
            "evicted": evicted.astype(np.float64),
            "lane": (found["id"] >> LANE_SHIFT).astype(np.int32),
            "end": codes,
        }
    )


# ---------------------------------------------------------------- how numbers are spread


def spread_samples(store: Store) -> dict[str, Any]:
    """Rewards, actions and priorities of transitions that lie evenly, of at most 100,000."""

    def draw(index: Any) -> Ids:
        n = index.n_transitions
        ranks = np.arange(min(n, _SPREAD_IDS)) * max(n / _SPREAD_IDS, 1)
        ids: Ids = index.at(ranks.astype(np.int64))
        return ids

    def read() -> tuple[Any, dict[str, Any]]:
        lanes = store.live.follow()
        n = lanes.index.n_transitions
        ids = store.live.look(draw)
        return lanes, {
            "of": n,
            "names": _action_names(store) if store.schema.action.shape == () else None,
            "ids": ids,
            "reward": lanes.columns["rewards"].take(ids),
            "action": lanes.columns["actions"].take(ids),
        }

    out = store.live.retrying(read)
    ids = out.pop("ids")
    priorities = read_priorities(store, ids) if has_priorities(store) else np.empty(0)
    known = priorities[np.isfinite(priorities) & (priorities > 0)]
    return {**out, "n": int(ids.size), "priority": np.log10(known)}


def distributions(samples: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """Histograms of several stores on the same axes; None for one that cannot be read.

    Each has a title, either ``values`` or ``edges``, and ``counts``, one list a store; that of
    actions ``names`` if all stores give them the same.
    """
    known = [one or {} for one in samples]
    charts = [_chart("Rewards", [one.get("reward") for one in known])]
    actions = [one.get("action") for one in known]
    parts = max((_n_parts(one) for one in actions if one is not None), default=0)
    named = [one["names"] for one in known if "names" in one]
    names = named[0] if named and all(one == named[0] for one in named) else None
    for part in range(min(parts, _MOST_PARTS)):
        title = "Actions" if parts == 1 else f"Actions [{part}]"
        chart = _chart(title, [_part(one, part) for one in actions], action=True)
        charts.append({**chart, "names": names})
    charts.append(_chart("Priorities, log10", [one.get("priority") for one in known]))
    return {
        "stores": [{"n": one.get("n", 0), "of": one.get("of", 0)} for one in known],
        "charts": [one for one in charts if any(sum(counts) for counts in one["counts"])],
    }


def _n_parts(actions: Array) -> int:
    return math.prod(actions.shape[1:])


def _part(actions: Array | None, part: int) -> Array | None:
    if actions is None or part >= _n_parts(actions):
        return None
    out: Array = actions.reshape(len(actions), _n_parts(actions))[:, part]
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
        if (np.diff(edges) <= 0).any():  # so close together that there is no room for them
            edges = edges[[0, -1]]
        counts = [np.histogram(one, edges)[0] for one in finite_ones]
        about = {"edges": finite(edges)}
    return {"title": title, "counts": [c.tolist() for c in counts], **about}


def _finite_values(values: Array | None) -> npt.NDArray[np.float64]:
    if values is None:
        return np.empty(0)
    out = values.astype(np.float64)
    kept: npt.NDArray[np.float64] = out[np.abs(out) < _LARGEST]
    return kept
