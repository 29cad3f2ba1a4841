"""`DeviceWindow`: batches on a device, with frames from a cache in the device's memory.

Invariant: a batch is what `to_tensors` makes of the data's own batch, bit for bit, whatever is
cached. The draw, the returns and everything but the frames are the host's, and a frame that is not
cached is read by the host as ever.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from mmreplay.adapters.frame_cache import FrameCache
from mmreplay.adapters.source import fields_of
from mmreplay.adapters.tensors import TensorBatch, TensorSequenceBatch, to_tensors
from mmreplay.batches.settings import Settings
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.source import WindowSource
from mmreplay.datasets.store_draws import Draw
from mmreplay.episode_index import Index
from mmreplay.errors import SchemaError
from mmreplay.ids import LANE_SHIFT, ROW_MASK, Array, Ids
from mmreplay.lazy_frames import joined_shape
from mmreplay.sampling.draws import Windows
from mmreplay.system.threads import Flag, Workers

_PIECE_BYTES = 1 << 24  # of frames that are read ahead at once
_FINALS = 32  # of so many frames that are cached one is a final observation
_SLACK = 1 << 16  # rows that a lane keeps beyond its capacity


class _Indices:
    """Stands for a column of frames, and holds their indices + 1: zeros are frames of zeros."""

    row_shape: tuple[int, ...] = ()
    dtype = np.dtype(np.int64)

    def take(self, indices: Ids, out: Array | None = None) -> Array:
        """See `Column`."""
        return np.add(indices, 1, out=out)


@dataclasses.dataclass(slots=True, eq=False)
class _Read:
    """Frames that were read: indices (n,), ascending, and which of them cannot change any more."""

    indices: Ids
    frames: Array
    is_fixed: npt.NDArray[np.bool_]


@dataclasses.dataclass(slots=True, eq=False)
class _Gathered:
    """A batch with indices + 1 in place of frames, and the frames that were not cached, by name."""

    batch: Any
    reads: dict[str, _Read]

    def __len__(self) -> int:
        return len(self.batch)


@dataclasses.dataclass(slots=True, eq=False)
class _Located:
    """What was looked up, and the entry after the newest of each lane at that moment."""

    places: Any
    heads: Ids
    pending: Any


class _IndexGatherer:
    """Gathers as another gatherer does, but the indices of frames; see `_Gathered`."""

    def __init__(self, gatherer: Any, window: DeviceWindow) -> None:
        self._gatherer, self._window = gatherer, window

    def locate(self, index: Index, ids: Ids) -> _Located:
        """See `Rebuilder`."""
        self._window.follow(index)
        places = self._gatherer.locate(index, ids)
        return _Located(places, _heads(index), places.pending)

    def fetch(self, columns: Mapping[str, Any], located: _Located, out: None = None) -> _Gathered:
        """See `Rebuilder`."""
        window = self._window
        stand_ins = {**columns, **dict.fromkeys(window.frame_paths.values(), _Indices())}
        batch = self._gatherer.fetch(stand_ins, located.places, out)
        reads = {}
        for name, path in window.frame_paths.items():
            wanted = np.unique(np.concatenate([one.ravel() for one in _memory(batch, name)]))
            wanted = wanted[wanted > 0] - 1
            wanted = wanted[window.caches[name].lacks(wanted)]
            frames = columns[path].take(wanted)
            reads[name] = _Read(wanted, frames, _are_fixed(wanted, located.heads))
        return _Gathered(batch, reads)


class _Filler:
    """Reads frames for the caches in a thread: the newest as they come, then older ones."""

    def __init__(self, window: DeviceWindow) -> None:
        self._window = window
        self._workers = Workers(1, "mmreplay-device")
        self._index: Index | None = None
        self._known: list[tuple[int, int]] = []  # of each lane, the entries that were read
        self._lane, self._start, self._stop = 0, 0, 0
        self._done: Flag | None = None
        self._found: tuple[Index | None, dict[str, _Read]] | None = None

    def advance(self) -> None:
        """Cache what was read, and let the thread read the next piece."""
        if self._done is not None and not self._done.is_set:
            return
        self._keep()
        self._done = Flag()
        if not self._workers.hand_over(self._read):
            self._done = None

    def fill(self) -> None:
        """Cache all that fits."""
        if self._done is not None:
            self._done.wait()
        self._keep()
        while self._read_piece():
            self._keep()

    def end(self) -> None:
        """End the thread."""
        self._workers.end()

    def _keep(self) -> None:
        if self._found is not None:
            index, reads = self._found
            self._found = None
            self._window.keep(index, reads)

    def _read(self) -> None:
        done = self._done
        try:
            self._read_piece()
        finally:
            if done is not None:
                done.set()

    def _read_piece(self) -> bool:
        """Read the next piece; False if there is none."""
        reads = self._window.data.store.live.gather(self._choose, self)
        if not any(read.indices.size for read in reads.values()):
            return False
        bottom, top = self._known[self._lane]
        self._known[self._lane] = min(bottom, self._start), max(top, self._stop)
        self._found = self._index, reads
        return True

    def _choose(self, index: Index) -> Ids:
        """The entries of the next piece."""
        window = self._window
        if index is not self._index:
            self._index = index
            self._known = [(head, head) for head in _heads(index) & ROW_MASK]
        for is_newer in (True, False):
            for lane, (bottom, top) in enumerate(self._known):
                base, _, head = index.window(lane)
                low = max(base, head - window.size(index, lane))
                start, stop = (max(top, low), head) if is_newer else (low, min(bottom, head))
                if start < stop:
                    if is_newer:
                        stop = min(stop, start + window.piece)
                    else:
                        start = max(start, stop - window.piece)
                    self._lane, self._start, self._stop = lane, start, stop
                    return np.arange(start, stop) + (lane << LANE_SHIFT)
        return np.empty(0, np.int64)

    def locate(self, index: Index, ids: Ids) -> _Located:
        """See `Rebuilder`."""
        return _Located(ids, _heads(index), ())

    def fetch(
        self, columns: Mapping[str, Any], located: _Located, out: None = None
    ) -> dict[str, _Read]:
        """See `Rebuilder`."""
        fixed = np.ones(located.places.size, np.bool_)
        return {
            name: _Read(located.places, columns[path].take(located.places, out), fixed)
            for name, path in self._window.frame_paths.items()
        }


class DeviceWindow(WindowSource):
    """A dataset or buffer whose batches are on a device; made by `on_device`.

    It draws from the data's own random state, with its settings, selection and priorities. For one
    thread. Closing it frees the memory, and leaves the data open.

    Attributes:
        data: the `Dataset` or buffer.
        device: where the tensors are.
        frame_paths: the columns of frames, by name.
        caches: the frames on the device, by the same names.
        piece: entries that are read ahead at once.
    """

    def __init__(self, data: Any, device: Any, memory: int) -> None:
        if not isinstance(data, Dataset):
            raise SchemaError(
                f"on_device: expected a dataset or a buffer, found a {type(data).__name__}; give "
                f"the data that it wraps, and change batches on the device"
            )
        self.data, self.device = data, torch.device(device)
        # The axis of the stack is moved on the device.
        self._reader = data.reading_with(dataclasses.replace(data.settings, stack_axis=0))
        self.frame_paths: Mapping[str, str] = data.store.schema.frame_paths
        columns = [data.store.live.columns[path] for path in self.frame_paths.values()]
        row_bytes = sum(math.prod(one.row_shape) * one.dtype.itemsize for one in columns)
        self._slots = memory // row_bytes
        self.piece = max(_PIECE_BYTES // row_bytes, 1)
        self.caches: dict[str, FrameCache] = {}
        self._of: weakref.ref[Index] | None = None  # the index that they follow
        self._sizes: list[int] = []
        self._filler = _Filler(self)
        if hasattr(data, "update_priorities"):
            self.update_priorities = self._update_priorities

    @property
    def settings(self) -> Settings:
        """How transitions are rebuilt: the data's."""
        return self.data.settings

    @property
    def generator(self) -> np.random.Generator:
        """Draws the samples: the data's."""
        return self.data.generator

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.data)

    # ------------------------------------------------------------ the caches

    def follow(self, index: Index) -> None:
        """Before a read: start over if the lanes were opened again."""
        if self._of is not None and self._of() is index:
            return
        sizes = self._ring_sizes(index)
        if sizes == self._sizes and self.caches:
            for cache in self.caches.values():
                cache.clear()
        else:
            self.caches, columns = {}, self.data.store.live.columns  # frees the old ones first
            for name, path in self.frame_paths.items():
                shape, dtype = columns[path].row_shape, columns[path].dtype
                self.caches[name] = FrameCache(np.array(sizes), shape, dtype, self.device)
        self._sizes, self._of = sizes, weakref.ref(index)

    def size(self, index: Index, lane: int) -> int:
        """How many of a lane's entries fit; 0 before the first batch of its index."""
        return self._sizes[lane] if self._of is not None and self._of() is index else 0

    def keep(self, index: Index | None, reads: Mapping[str, _Read]) -> None:
        """Cache frames that were read with this index."""
        if index is not None and self._of is not None and self._of() is index:
            for name, read in reads.items():
                cache = self.caches[name]
                cache.put(read.indices, cache.sent(read.frames))

    def _ring_sizes(self, index: Index) -> list[int]:
        """Slots of each part of a column: the lanes' entries, and their final observations."""
        readers, n = self.data.store.live.readers, index.n_lanes
        finals = max(self._slots // (_FINALS * n), 1)
        left, sizes = self._slots - finals * n, [0] * n
        wanted = []
        for lane, reader in enumerate(readers):
            base, _, head = index.window(lane)
            capacity = reader.metadata["capacity"]
            most = head - base if reader.is_closed else self._slots
            if capacity is not None and not reader.is_closed:
                most = max(head - base, capacity + reader.n * _SLACK)
            wanted.append((most, lane))
        for rank, (most, lane) in enumerate(sorted(wanted)):
            sizes[lane] = max(min(most, left // (n - rank)), 1)
            left -= sizes[lane]
        return [*sizes, *[finals] * n]

    def fill(self) -> None:
        """Cache all that fits now, rather than while batches are drawn."""
        self.data.store.live.look(self.follow)
        self._filler.fill()

    # ------------------------------------------------------------ batches

    def _sample(
        self, size: int, out: TensorBatch | None, replace: bool, group: int | None
    ) -> TensorBatch:
        draw = self._reader.begin_sample(self.generator, size, replace, group)
        return self._drawn(draw, out)

    def _sample_windows(
        self, size: int, windows: Windows, out: TensorSequenceBatch | None
    ) -> TensorSequenceBatch:
        draw = self._reader.draws.sequences(self.generator, windows, size)
        return self._drawn(draw, out)

    def _drawn(self, draw: Draw[Any], out: Any) -> Any:
        self._filler.advance()
        gatherer = _IndexGatherer(draw.gatherer, self)
        gathered = self.data.store.live.gather(draw.choose, gatherer, None, draw.kept)
        if draw.finish is not None:
            draw.finish(gathered.batch)
        tensors = self._tensors(gathered)
        if out is None:
            return tensors
        return _copied(tensors, out)

    def _batches(self, given: EpochArguments) -> Iterator[TensorBatch]:
        gatherer = _IndexGatherer(self._reader.draws.gatherer, self)
        each = self._reader.read_batches(given, lambda _: gatherer)
        return map(self._tensors, each)

    def _tensors(self, gathered: _Gathered) -> Any:
        """A batch on the device, its frames from the caches."""
        batch = gathered.batch
        rest = dataclasses.replace(batch, observation={}, next_observation={})
        tensors = to_tensors(rest, self.device)
        pairs = {name: self._frames(batch, name, gathered.reads[name]) for name in self.caches}
        if not isinstance(batch.observation, dict):
            ((seen, following),) = pairs.values()
        else:
            seen = {name: one for name, (one, _) in pairs.items()}
            following = {name: one for name, (_, one) in pairs.items()}
        return dataclasses.replace(tensors, observation=seen, next_observation=following)

    def _frames(self, batch: Any, name: str, read: _Read) -> tuple[torch.Tensor, torch.Tensor]:
        """Observation and next observation of a column, views of one tensor where arrays are."""
        memory = _memory(batch, name)
        indices = np.concatenate([one.ravel() for one in memory]) - 1
        # At once: what is cached then replaces frames that a second call would want.
        taken = self.caches[name].take(indices, read.indices, read.frames, read.is_fixed)
        parts = taken.split([one.size for one in memory])
        found = {
            id(one): part.view(*one.shape, *taken.shape[1:])
            for one, part in zip(memory, parts, strict=True)
        }
        out = []
        for view in _pair(batch, name):
            base = _owner(view)
            frames = found[id(base)]
            shape = frames.shape[base.ndim :]
            size, item = math.prod(shape), base.itemsize
            strides = [stride // item * size for stride in view.strides]
            offset = (view.ctypes.data - base.ctypes.data) // item * size + frames.storage_offset()
            inner = frames.stride()[base.ndim :]
            tensor = frames.as_strided((*view.shape, *shape), (*strides, *inner), offset)
            stacked = self.settings.stacked
            is_stack = self.settings.stack is not None and (stacked is None or name in stacked)
            if is_stack and self.settings.stack_axis == -1:
                k = view.shape[-1]
                tensor = tensor.movedim(view.ndim - 1, -2 if len(shape) == 3 else -1)
                tensor = tensor.reshape(*view.shape[:-1], *joined_shape(k, tuple(shape)))
            out.append(tensor)
        return out[0], out[1]

    def _update_priorities(self, ids: Any, errors: Any) -> None:
        """See `PrioritizedReplayBuffer.update_priorities`; tensors of any device, or arrays."""
        self.data.update_priorities(_on_host(ids), _on_host(errors))  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        """The data's; see `Dataset.state_dict`."""
        return self.data.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Dataset.load_state_dict`."""
        self.data.load_state_dict(state)

    def close(self) -> None:
        """Free the memory on the device; a second call does nothing."""
        self._filler.end()
        self.caches, self._sizes, self._of = {}, [], None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<mmreplay.adapters.torch.DeviceWindow on {self.device} of {self.data!r}>"


def _heads(index: Index) -> Ids:
    return np.array([index.window(lane)[2] for lane in range(index.n_lanes)])


def _are_fixed(indices: Ids, heads: Ids) -> npt.NDArray[np.bool_]:
    """Which frames cannot change: a reset replaces what is pending, after the newest entry."""
    parts = indices >> LANE_SHIFT
    are_finals: npt.NDArray[np.bool_] = parts >= heads.size
    return are_finals | (indices & ROW_MASK < heads[np.minimum(parts, heads.size - 1)])


def _pair(batch: Any, name: str) -> tuple[Array, Array]:
    """Observation and next observation of a column."""
    seen, following = batch.observation, batch.next_observation
    return (seen[name], following[name]) if isinstance(seen, dict) else (seen, following)


def _owner(array: Array) -> Array:
    return array.base if isinstance(array.base, np.ndarray) else array


def _memory(batch: Any, name: str) -> list[Array]:
    """The arrays that the observations of a column are views of, each once."""
    return [*{id(base): base for base in map(_owner, _pair(batch, name))}.values()]


def _copied(tensors: Any, out: Any) -> Any:
    """Overwrite a batch that was returned before."""
    for name, one in fields_of(tensors).items():
        target = getattr(out, name)
        pairs = [(one, target)] if isinstance(one, torch.Tensor) else []
        if isinstance(one, dict):
            pairs = [(one[key], target[key]) for key in one]
        for source, place in pairs:
            place.copy_(source)
    return out


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
