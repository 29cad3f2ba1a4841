"""`DeviceWindow`: batches on a device, with frames from a cache in the device's memory.

Invariant: a batch is what `to_tensors` makes of the data's own batch, bit for bit, whatever is
cached. The draw, the returns and everything but the frames are the host's, and a frame that is not
cached is read by the host as ever.
"""

from __future__ import annotations

import dataclasses
import math
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch

from mmreplay.adapters.frame_cache import FrameCache
from mmreplay.adapters.frame_indices import (
    Gathered,
    IndexGatherer,
    Located,
    as_viewed,
    heads_of,
    owner_of,
    seen_in,
    with_frames,
)
from mmreplay.adapters.tensors import AnyTensors, sent_together, to_tensors
from mmreplay.batches.batch import arrays_of
from mmreplay.batches.settings import Settings
from mmreplay.batches.windows import FieldWindows, WindowBatch
from mmreplay.datasets.around import Around
from mmreplay.datasets.dataset import Dataset
from mmreplay.datasets.epochs import EpochArguments
from mmreplay.datasets.read_ahead import ReadAhead
from mmreplay.datasets.source import Windowed, WindowSource
from mmreplay.datasets.store_draws import Draw, StoreDraws, around
from mmreplay.episode_index import Index
from mmreplay.errors import MmreplayError, SchemaError, UnsupportedError
from mmreplay.ids import LANE_SHIFT, Array, Ids
from mmreplay.lazy_frames import joined_shape
from mmreplay.sampling.draws import Windows
from mmreplay.schema import Schema
from mmreplay.system.threads import Flag, Workers

_PIECE_BYTES = 1 << 24  # of frames that are read ahead at once
_FINALS = 32  # of so many frames that are cached one is a final observation
_LOOK_S = 0.02  # between looks for new frames: another thread takes longer to wake than a batch
_SLACK = 1 << 16  # rows that a lane keeps beyond its capacity


_Piece = tuple[Ids, Array]
"""Frames that were read, and their indices."""


class _Filler:
    """Reads frames for the caches in a thread: the newest as they come, then older ones."""

    def __init__(self, window: DeviceWindow) -> None:
        self._window = window
        self._workers = Workers(1, "mmreplay-device")
        self._index: Index | None = None
        self._known: list[tuple[int, int]] = []  # of each lane, the entries that were read
        self._lane, self._start, self._stop = 0, 0, 0
        self._done: Flag | None = None
        self._next_look = 0.0  # after a piece with nothing in it
        self._found: tuple[Index | None, dict[str, _Piece]] | None = None

    def advance(self) -> None:
        """Cache what was read, and let the thread read the next piece."""
        if self._done is not None and not self._done.is_set:
            return
        if self._found is None and time.monotonic() < self._next_look:
            return
        self._keep()
        self._done, self._next_look = Flag(), time.monotonic() + _LOOK_S
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
        except (MmreplayError, OSError):
            pass  # the batches that need these frames say so
        finally:
            if done is not None:
                done.set()

    def _read_piece(self) -> bool:
        """Read the next piece; return False when nothing is left."""
        this: Any = self
        reads: dict[str, _Piece] = self._window.store.live.gather(self._choose, this)
        if not any(indices.size for indices, _ in reads.values()):
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
            self._known = [(head, head) for head in heads_of(index)]
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

    def locate(self, index: Index, ids: Ids) -> Located:
        """See `Rebuilder`."""
        return Located(ids, heads_of(index), ())

    def fetch(
        self, columns: Mapping[str, Any], located: Located, out: None = None
    ) -> dict[str, _Piece]:
        """See `Rebuilder`."""
        return {
            name: (located.places, columns[path].take(located.places, out))
            for name, path in self._window.frame_paths.items()
        }


class DeviceWindow(Around["DeviceWindow"], WindowSource["DeviceWindow"]):
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

    data: Dataset

    _lacks = "use the data that it was made of, in `data`"

    def __init__(self, data: Any, device: torch.device, memory: int) -> None:
        if not isinstance(data, Dataset):
            raise SchemaError(
                f"on_device: expected a dataset or a buffer, found a {type(data).__name__}; give "
                f"the data that it wraps, and change batches on the device"
            )
        super().__init__(data)
        self.device = device
        # The axis of a stack is moved on the device.
        self._alike = dataclasses.replace(data.settings, stack_axis=0)
        self._gatherers = StoreDraws(data.store, self._alike, None)
        self.frame_paths: Mapping[str, str] = data.store.schema.frame_paths
        columns = [data.store.live.columns[path] for path in self.frame_paths.values()]
        row_bytes = sum(math.prod(one.row_shape) * one.dtype.itemsize for one in columns)
        self._slots = memory // row_bytes
        least = 2 * data.store.live.index.n_lanes
        if self._slots < least:
            raise SchemaError(
                f"memory: expected {least * row_bytes:,} bytes or more, for two frames of each "
                f"lane, found {memory:,}"
            )
        self.piece = max(_PIECE_BYTES // row_bytes, 1)
        self.caches: dict[str, FrameCache] = {}
        self._of: weakref.ref[Index] | None = None  # the index that they follow
        self._sizes: list[int] = []
        self._filler = _Filler(self)

    @property
    def schema(self) -> Schema:
        """What a row holds."""
        return self.data.schema

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

    def keep(self, index: Index | None, pieces: Mapping[str, _Piece]) -> None:
        """Cache frames that were read with this index."""
        if index is not None and self._of is not None and self._of() is index:
            for name, (indices, frames) in pieces.items():
                cache = self.caches[name]
                cache.put(indices, cache.sent(frames))

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

    def _sample(self, size: int, out: Any, replace: bool, group: int | None) -> Any:
        draw = self.data.begin_sample(self.generator, size, replace, group)
        return self._drawn(draw, self._gatherers.gatherer, out)

    def _sample_sequences(self, size: int, windows: Windows, out: Any) -> Any:
        draw = self.data.draws.sequences(self.generator, windows, size)
        return self._drawn(draw, self._gatherers.sequence_gatherer(windows), out)

    def _sample_portions(self, size: int, windows: Windows) -> Any:
        draw = self.data.draws.portions(self.generator, windows, size)
        return self._drawn(draw, self._gatherers.sequence_gatherer(windows), None)

    def _sample_windows(self, size: int, fields: FieldWindows, out: Any) -> Any:
        draw = self.data.begin_windows(self.generator, size, fields)
        return self._drawn(draw, draw.gatherer, out)

    def _transitions(self, ids: npt.ArrayLike, out: Any, changes: dict[str, Any]) -> Any:
        axis = changes.get("stack_axis", self.settings.stack_axis)
        alike = dataclasses.replace(self._alike, **{**changes, "stack_axis": 0})
        gatherer = self.store.live.gatherer(alike)
        valid = self.store.live.valid_ids(_on_host(ids))
        return self._drawn(Draw(valid, gatherer), gatherer, out, axis)

    def _windows(self, ids: npt.ArrayLike, fields: FieldWindows, out: Any) -> Any:
        gatherer = self._gatherers.field_gatherer(fields)
        valid = self.store.live.valid_ids(_on_host(ids))
        return self._drawn(Draw(valid, gatherer), gatherer, out)

    def field_windows(self, windows: Windowed, boundary: str) -> FieldWindows:
        """See `WindowSource`."""
        return self.data.field_windows(windows, boundary)

    def _drawn(self, draw: Draw[Any], gatherer: Any, out: Any, axis: int | None = None) -> Any:
        self._filler.advance()
        with_indices: Any = IndexGatherer(gatherer, self)
        live = self.store.live
        gathered = live.gather(draw.choose, with_indices, None, draw.kept, draw.numbers)
        if draw.finish is not None:
            draw.finish(gathered.batch)
        tensors = self._tensors(gathered, gatherer.settings, axis)
        return tensors if out is None else _copied(tensors, out)

    def _batches(self, given: EpochArguments, windows: Windows | None) -> Iterator[Any]:
        draws = self._gatherers
        gatherer = draws.gatherer if windows is None else draws.sequence_gatherer(windows)
        return self._epoch(given, gatherer, windows, None)

    def _window_batches(self, given: EpochArguments, fields: FieldWindows) -> Iterator[Any]:
        windows = around(fields) if fields.boundary == "drop" else None
        return self._epoch(given, self._gatherers.field_gatherer(fields), windows, fields.frames)

    def _epoch(
        self,
        given: EpochArguments,
        gatherer: Any,
        windows: Windows | None,
        frames: tuple[int, int] | None,
    ) -> Iterator[Any]:
        with_indices: Any = IndexGatherer(gatherer, self)
        # Read when requested: what is cached must not change between the read and the batch.
        each = self.data.read_batches(
            given, lambda _: with_indices, windows, frames, read_ahead=ReadAhead(0)
        )

        def made(gathered: Any) -> AnyTensors:
            tensors = self._tensors(gathered, gatherer.settings)
            self._filler.advance()
            return tensors

        return map(made, each)

    def _tensors(self, gathered: Gathered, settings: Settings, axis: int | None = None) -> Any:
        """A batch on the device, its frames from the caches."""
        batch = gathered.batch
        seen = seen_in(batch)
        if isinstance(batch, WindowBatch):
            rest = {name: one for name, one in batch.fields.items() if name not in seen}
            tensors: Any = to_tensors(dataclasses.replace(batch, fields=rest), self.device)
            is_last = False
        else:
            bare: dict[str, Any] = {name: {} for name in seen}
            tensors = to_tensors(dataclasses.replace(batch, **bare), self.device)
            is_last = (self.settings.stack_axis if axis is None else axis) == -1
        slots = sent_together([one.slots for one in gathered.wanted.values()], self.device)
        found: dict[int, torch.Tensor] = {}  # by the array of indices
        memory = gathered.memory
        for (name, wanted), places in zip(gathered.wanted.items(), slots, strict=True):
            # At once: what is cached then replaces frames that a second call would want.
            taken = self.caches[name].take(wanted, places)
            sizes = [array.size for array in memory[name]]
            for array, part in zip(memory[name], taken.split(sizes), strict=True):
                found[id(array)] = part.view(*array.shape, *taken.shape[1:])

        def frames(name: str, view: Array) -> torch.Tensor:
            out = as_viewed(view, found[id(owner_of(view))])
            stacked = settings.stacked is None or name in settings.stacked
            if not is_last or settings.stack is None or not stacked:
                return out
            shape = out.shape[view.ndim :]
            out = out.movedim(view.ndim - 1, -2 if len(shape) == 3 else -1)  # noqa: PLR2004
            return out.reshape(*view.shape[:-1], *joined_shape(view.shape[-1], tuple(shape)))

        made = with_frames(seen, frames)
        if isinstance(batch, WindowBatch):
            fields = {name: made.get(name, tensors.fields.get(name)) for name in batch.fields}
            return dataclasses.replace(tensors, fields=fields)
        return dataclasses.replace(tensors, **made)

    # ------------------------------------------------------------ the data's own

    def update_priorities(self, ids: Any, errors: Any) -> None:
        """See `PrioritizedReplayBuffer.update_priorities`; tensors of any device, or arrays.

        Raises UnsupportedError of data without priorities.
        """
        update = getattr(self.data, "update_priorities", None)
        if update is None:
            raise UnsupportedError(
                f"DeviceWindow.update_priorities: {self.data!r} samples uniformly; give "
                f"on_device a PrioritizedReplayBuffer"
            )
        update(_on_host(ids), _on_host(errors))

    def update(self, ids: Any, /, **columns: Any) -> None:
        """See `Source.update`; tensors of any device, or arrays."""
        self.data.update(_on_host(ids), **{name: _on_host(x) for name, x in columns.items()})

    def _select(self, *_: Any) -> NoReturn:
        raise UnsupportedError(
            "DeviceWindow: select or split the data, and give on_device each part, with its share "
            "of the memory"
        )

    def _split(self, *_: Any) -> NoReturn:
        self._select()

    def close(self) -> None:
        """Free the memory on the device, and leave the data open; a second call does nothing."""
        self._filler.end()
        self.caches, self._sizes, self._of = {}, [], None

    def __repr__(self) -> str:
        return f"<mmreplay.adapters.torch.DeviceWindow on {self.device} of {self.data!r}>"


def _copied(tensors: Any, out: Any) -> Any:
    """Overwrite a batch that was returned before."""
    pairs = zip(_tensors_of(tensors), _tensors_of(out), strict=True)
    for source, place in pairs:
        place.copy_(source)
    return out


def _tensors_of(batch: Any) -> list[torch.Tensor]:
    return [one for one in arrays_of(batch).values() if isinstance(one, torch.Tensor)]


def _on_host(values: Any) -> Any:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else values
