"""Batches with the indices of frames in place of the frames, and back.

Invariant: index 0 stands for a frame of zeros, i + 1 for the frame with the index i in its column.
So what a gatherer does with frames, views, padding and blanks, it does with their indices.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from mmreplay.adapters.frame_cache import FrameCache, Wanted
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import OBSERVATION, WindowBatch, is_seen
from mmreplay.episode_index import Index
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.schema import FRAME


class Caches(Protocol):
    """Caches of frames; `follow` is called before a read, under the lock of the index."""

    frame_paths: Mapping[str, str]
    caches: dict[str, FrameCache]

    def follow(self, index: Index) -> None:
        """Start over if the lanes were opened again."""


class _Indices:
    """Stands for a column of frames, and holds their indices + 1: zeros are frames of zeros."""

    row_shape: tuple[int, ...] = ()
    dtype = np.dtype(np.int64)

    def take(self, indices: Ids, out: Array | None = None) -> Array:
        """See `Column`."""
        return np.add(indices, 1, out=out)


_STAND_IN = _Indices()


@dataclasses.dataclass(slots=True, eq=False)
class Gathered:
    """A batch with indices + 1 in place of frames, the arrays of these, and what they are."""

    batch: Any
    memory: dict[str, list[Array]]  # by the frames' name
    wanted: dict[str, Wanted]

    def __len__(self) -> int:
        return len(self.batch)


@dataclasses.dataclass(slots=True, eq=False)
class Located:
    """What was looked up, and the entry after the newest of each lane at that moment."""

    places: Any
    heads: Ids
    pending: Any


class IndexGatherer:
    """Gathers as another gatherer does, but the indices of frames; see `Gathered`."""

    def __init__(self, gatherer: Any, window: Caches) -> None:
        self.settings: Settings = gatherer.settings
        self._gatherer, self._window = gatherer, window

    def locate(self, index: Index, ids: Ids) -> Located:
        """See `Rebuilder`."""
        self._window.follow(index)
        places = self._gatherer.locate(index, ids)
        return Located(places, heads_of(index), places.pending)

    def fetch(self, columns: Mapping[str, Any], located: Located, out: None = None) -> Gathered:
        """See `Rebuilder`."""
        window = self._window
        stand_ins = {**columns, **dict.fromkeys(window.frame_paths.values(), _STAND_IN)}
        batch = self._gatherer.fetch(stand_ins, located.places, out)
        found, memory = {}, memory_of(batch)
        for name, arrays in memory.items():
            parts = [array.reshape(-1) for array in arrays]
            indices = parts[0] if len(parts) == 1 else np.concatenate(parts)
            wanted = found[name] = window.caches[name].find(indices - 1)
            if wanted.missing is not None:
                wanted.frames = columns[window.frame_paths[name]].take(wanted.missing)
                wanted.fixed = _are_fixed(wanted.missing, located.heads)
        return Gathered(batch, memory, found)


def heads_of(index: Index) -> Ids:
    """The entry after the newest of each lane."""
    return np.array([index.window(lane)[2] for lane in range(index.n_lanes)])


def _are_fixed(indices: Ids, heads: Ids) -> npt.NDArray[np.bool_]:
    """Which frames cannot change: a reset replaces what is pending, after the newest entry."""
    parts = indices >> LANE_SHIFT
    are_finals: npt.NDArray[np.bool_] = parts >= heads.size
    return are_finals | (indices & ROW_MASK < heads.take(parts, mode="clip"))


def seen_in(batch: Any) -> dict[str, Any]:
    """The observations of a batch, by their names in it."""
    if isinstance(batch, WindowBatch):
        return {name: one for name, one in batch.fields.items() if is_seen(name)}
    return {"observation": batch.observation, "next_observation": batch.next_observation}


def with_frames(seen: dict[str, Any], change: Callable[[str, Array], Any]) -> dict[str, Any]:
    """Observations by their names, changed; `change` takes the name of the frames, too."""
    out = {}
    for name, one in seen.items():
        if isinstance(one, dict):
            out[name] = {key: change(key, array) for key, array in one.items()}
        else:
            key = name.removeprefix(f"{OBSERVATION}.") if name != OBSERVATION else FRAME
            out[name] = change(FRAME if name == "next_observation" else key, one)
    return out


def owner_of(array: Array) -> Array:
    """The array whose memory it shows."""
    return array.base if isinstance(array.base, np.ndarray) else array


def memory_of(batch: Any) -> dict[str, list[Array]]:
    """By the frames' name, the arrays that observations are views of, each once."""
    found: dict[str, dict[int, Array]] = {}

    def note(name: str, array: Array) -> None:
        owner = owner_of(array)
        found.setdefault(name, {})[id(owner)] = owner

    with_frames(seen_in(batch), note)
    return {name: [*arrays.values()] for name, arrays in found.items()}


def as_viewed(view: Array, frames: torch.Tensor) -> torch.Tensor:
    """Frames (*owner.shape, ...) as `view` shows the numbers of its owner."""
    owner = owner_of(view)
    shape, inner = frames.shape[owner.ndim :], frames.stride()[owner.ndim :]
    size, item = math.prod(shape), owner.itemsize
    strides = [stride // item * size for stride in view.strides]
    offset = (view.ctypes.data - owner.ctypes.data) // item * size + frames.storage_offset()
    return frames.as_strided((*view.shape, *shape), (*strides, *inner), offset)
