"""PyTorch: a loader, a dataset for `DataLoader`, tensors of any batch, and frames on a device."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack

from mmreplay.adapters.source import Listed, LoadSettings, opened
from mmreplay.arguments import whole_number
from mmreplay.batches.batch import Batch
from mmreplay.batches.windows import WindowBatch
from mmreplay.datasets.source import Windowed
from mmreplay.errors import MissingExtraError, SchemaError

try:
    import torch
    import torch.distributed
    import torch.utils.data

    from mmreplay.adapters.device_window import DeviceWindow
    from mmreplay.adapters.tensors import (
        AnyTensors,
        TensorBatch,
        TensorSequenceBatch,
        TensorWindowBatch,
        to_tensors,
    )
except ImportError as error:
    raise MissingExtraError(
        'mmreplay.adapters.torch needs PyTorch: pip install "mmreplay[torch]"'
    ) from error

__all__ = [
    "DeviceWindow",
    "Loader",
    "TensorBatch",
    "TensorSequenceBatch",
    "TensorWindowBatch",
    "TransitionDataset",
    "loader",
    "on_device",
    "to_tensors",
]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
_SIZE = re.compile(r"([0-9.]+) ?([KMGT]?I?)B", re.IGNORECASE)


class Loader(torch.utils.data.IterableDataset):
    """Epochs of tensors; created by `loader`, which describes the arguments.

    Each `for` goes through `epochs` epochs, and the next `for` continues with the next epoch's
    order. It is an `IterableDataset` of whole batches: a `DataLoader` with ``batch_size=None``
    shares each epoch among its workers.

    Attributes:
        data: the dataset that it reads.
    """

    def __init__(
        self,
        data: Any,
        device: Any,
        epochs: int | None,
        rank: tuple[int, int],
        given: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.data = data
        self._device, self._epochs, self._rank, self._given = device, epochs, rank, dict(given)
        # Shared with persistent workers: the epoch that was set, and how often one was set.
        self._set = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._seen = 0

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        rank, world_size = self._rank
        read = self.data.window_batches if "windows" in self._given else self.data.batches
        batches = read(
            epochs=self._epochs,
            rank=rank * workers + number,
            world_size=world_size * workers,
            epoch=self._epoch_to_begin(),
            **self._given,
        )
        return (to_tensors(batch, self._device) for batch in batches)

    def _epoch_to_begin(self) -> int | None:
        epoch, times = self._set.tolist()
        if times == self._seen:
            return None  # the next one
        self._seen = times
        return int(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Begin the next `for` with this epoch, 0 or more, in every worker.

        Needed with workers that restart for each epoch: without it they repeat the same epoch.
        Persistent workers and a loop without workers continue by themselves.
        """
        self._set += torch.tensor([whole_number("epoch", epoch, 0) - int(self._set[0]), 1])

    def state_dict(self) -> dict[str, Any]:
        """The position, also in the middle of an epoch; see `Dataset.state_dict`."""
        state: dict[str, Any] = self.data.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue that `for` with the next one; see `Dataset.load_state_dict`."""
        self.data.load_state_dict(state)
        self._seen = int(self._set[1])


def loader(
    data: Any,
    batch_size: int,
    *,
    prefetch: int = 2,
    device: Any = "cpu",
    epochs: int | None = 1,
    shuffle: bool | Literal["full"] = True,
    shuffle_rows: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    drop_last: bool = False,
    windows: Windowed | None = None,
    boundary: str = "pad",
    **settings: Unpack[LoadSettings],
) -> Loader:
    """Every transition once per epoch, as tensors, read ahead by threads.

    Args:
        data: the path of a store, a list of paths or a pattern; or a dataset, including a live
            buffer.
        batch_size: B; the last batch of an epoch may be smaller.
        prefetch: of a path, batches to read ahead in threads.
        device: where the tensors are.
        epochs: how many a `for` goes through; None for no end. After `load_state_dict` the next
            `for` continues the one that was interrupted, and counts its epochs, too.
        shuffle: True, False or ``full``; as for `Dataset.batches`.
        shuffle_rows: rows of a pool; as for `Dataset.batches`.
        rank: number of this process; None takes it from `torch.distributed`, if that is running.
        world_size: processes that share each epoch; None as for `rank`.
        drop_last: leave out batches that not every rank and worker can fill.
        windows: offsets by name: batches are a `TensorWindowBatch` each, of the windows that
            `Dataset.window_batches` gives.
        boundary: of these, ``pad`` or ``drop``.
        **settings: of a path, `stack`, `n_step`, `gamma`, `seed`, `padding`, `stack_axis` and
            `clip_reward` of `mmreplay.load`; a dataset has its own.

    Raises:
        MmreplayError: as `load`; SchemaError of settings beside a dataset, of windows as
            `Dataset.sample_windows`, and as `Dataset.batches` when an epoch begins;
            UnsupportedError of a `Mixture`.
    """
    source = opened(data, settings, prefetch, needs=("batches",))
    given = {
        "batch_size": batch_size,
        "shuffle": shuffle,
        "shuffle_rows": shuffle_rows,
        "drop_last": drop_last,
    }
    if windows is not None:
        given["windows"] = source.field_windows(windows, boundary)
    return Loader(source, device, epochs, _ranks(rank, world_size), given)


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if is_distributed else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if is_distributed else 1
    return rank, world_size


class TransitionDataset(Listed, torch.utils.data.Dataset):
    """Transitions by number, for a `DataLoader` with a sampler of its own.

    A batch is read at once: pass ``collate_fn=TransitionDataset.collate``. Number i is the
    transition with the i-th smallest id at creation. Workers may be forked or spawned.

    Args:
        data: as for `loader`.
        windows: offsets by name: batches are windows, padded.
        **settings: as for `loader`.

    Raises:
        MmreplayError: as `loader`.

    Attributes:
        data: the dataset that it reads.
        ids: (len(self),) int64, those of the transitions.
    """

    def __getitem__(self, number: int) -> Batch | WindowBatch:
        """One transition, as a batch of one; IndexError past the end."""
        return self.__getitems__([number])

    def __getitems__(self, numbers: Sequence[int]) -> Batch | WindowBatch:
        """A batch of arrays.

        Raises:
            IndexError: past the end.
            InvalidIdError: a transition that was evicted.
            SchemaError: the path now holds another store.
        """
        batch: Batch | WindowBatch = self._read(numbers)
        return batch

    @staticmethod
    def collate(batch: Batch | WindowBatch) -> AnyTensors:
        """A batch as tensors, for ``collate_fn``."""
        return to_tensors(batch)


def on_device(data: Any, device: Any, *, memory: int | str) -> DeviceWindow:
    """The batches of a dataset or buffer on a device, most frames from a cache in its memory.

    Its `sample`, `sample_sequences`, `sample_windows`, `transitions`, `batches` and what else draws
    return what `to_tensors` makes of the data's own batches, bit for bit, and draw from the data's
    own random state. Frames are sent to the device once, the newest of live stores as they come and
    older ones in the background; what is not cached is read by the host as ever. Nothing is lost
    with the device: after a kill the cache fills again from the store.

    Args:
        data: a dataset or buffer, no wrapper of one. It stays open when the window is closed.
        device: as for torch.
        memory: of the device, for frames: bytes, or a text such as ``"8GB"`` or ``"500 MiB"``.

    Raises:
        SchemaError: other data, or no such memory.
    """
    return DeviceWindow(data, torch.device(device), _bytes_of(memory))


def _bytes_of(memory: Any) -> int:
    """The number of bytes that was given as one, or as a text."""
    found = _SIZE.fullmatch(memory.strip()) if isinstance(memory, str) else None
    try:
        if found is not None:
            memory = int(float(found[1]) * (_UNITS | _BINARY)[found[2].upper()])
        return whole_number("memory", memory)
    except (SchemaError, ValueError, KeyError):
        raise SchemaError(
            f"memory: expected a number of bytes, or a text such as '8GB', found {memory!r:.80}"
        ) from None
