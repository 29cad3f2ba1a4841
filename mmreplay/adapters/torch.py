"""PyTorch: a loader of batches as tensors, a dataset for `DataLoader`, and tensors of any batch.

Invariant: tensors are the arrays of a batch, without a copy. Memory that several of them share, as
observation and next observation do, is moved once and is shared on the device, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import numpy as np

from mmreplay.adapters.source import Listed, LoadSettings, opened
from mmreplay.arguments import whole_number
from mmreplay.batches.batch import Batch, fields_of, shapes_of, with_each
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.windows import WindowBatch
from mmreplay.datasets.source import Windowed
from mmreplay.errors import MissingExtraError, SchemaError

try:
    import torch
    import torch.distributed
    import torch.utils.data
except ImportError as error:
    raise MissingExtraError(
        'mmreplay.adapters.torch needs PyTorch: pip install "mmreplay[torch]"'
    ) from error

__all__ = [
    "Loader",
    "TensorBatch",
    "TensorSequenceBatch",
    "TensorWindowBatch",
    "TransitionDataset",
    "loader",
    "to_tensors",
]


class _Movable:
    """Moves the tensors of a batch."""

    __slots__ = ()
    if TYPE_CHECKING:
        id: torch.Tensor

    def __repr__(self) -> str:
        return shapes_of(self)

    def __len__(self) -> int:
        return len(self.id)

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """The same on a device; frames that both observations show are sent once."""
        return self._moved(lambda memory: memory.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same in page-locked memory, from which a GPU copies in the background."""
        return self._moved(lambda memory: memory.pin_memory())

    def _moved(self, move: Callable[[torch.Tensor], torch.Tensor]) -> Self:
        """Move each piece of memory once, and make the same views of it."""
        moved: dict[tuple[int, torch.dtype], torch.Tensor] = {}

        def view(tensor: Any) -> Any:
            if not isinstance(tensor, torch.Tensor):
                return tensor
            memory = tensor.untyped_storage()
            key = memory.data_ptr(), tensor.dtype
            if key not in moved:
                moved[key] = move(
                    torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory)
                )
            return moved[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

        return type(self)(**with_each(fields_of(self), view))


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Tensors(_Movable):
    """What tensors of transitions and of sequences have in common."""

    observation: torch.Tensor | dict[str, torch.Tensor]
    next_observation: torch.Tensor | dict[str, torch.Tensor]
    action: torch.Tensor
    reward: torch.Tensor
    discount: torch.Tensor
    non_terminal: torch.Tensor
    id: torch.Tensor
    weight: torch.Tensor
    extras: dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorBatch(_Tensors):
    """Transitions as tensors: the fields of `Batch`, with its shapes and dtypes."""

    terminated: torch.Tensor
    truncated: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorSequenceBatch(_Tensors):
    """Sequences as tensors: the fields of `SequenceBatch`, with its shapes and dtypes."""

    mask: torch.Tensor
    step: torch.Tensor
    first: torch.Tensor
    burn_in: int
    terminated: torch.Tensor
    truncated: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorWindowBatch(_Movable):
    """Windows as tensors: the fields of `WindowBatch`, with its shapes and dtypes."""

    fields: dict[str, Any]
    mask: dict[str, torch.Tensor]
    id: torch.Tensor
    weight: torch.Tensor

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


AnyTensors = TensorBatch | TensorSequenceBatch | TensorWindowBatch
_KINDS: dict[type, type[AnyTensors]] = {
    Batch: TensorBatch,
    SequenceBatch: TensorSequenceBatch,
    WindowBatch: TensorWindowBatch,
}


@overload
def to_tensors(batch: Batch, device: Any = "cpu") -> TensorBatch: ...
@overload
def to_tensors(batch: SequenceBatch, device: Any = "cpu") -> TensorSequenceBatch: ...
@overload
def to_tensors(batch: WindowBatch, device: Any = "cpu") -> TensorWindowBatch: ...
def to_tensors(batch: Batch | SequenceBatch | WindowBatch, device: Any = "cpu") -> AnyTensors:
    """The arrays of a batch as tensors on a device; on the CPU they share its memory.

    Texts of episodes, in `extras`, are left out: no tensor holds them.

    To a CUDA device they are copied through page-locked memory, without waiting for the copy.
    Raises SchemaError for anything but a `Batch`, `SequenceBatch` or `WindowBatch`.
    """
    kind = next((made for of, made in _KINDS.items() if isinstance(batch, of)), None)
    if kind is None:
        raise SchemaError(f"expected a Batch, SequenceBatch or WindowBatch, found {batch!r:.200}")
    memory: dict[int, torch.Tensor] = {}

    def view(array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        item = array.itemsize
        if any(stride < 0 or stride % item for stride in array.strides):
            array = array.copy()  # no tensor has such strides
        base = array.base
        is_whole = isinstance(base, np.ndarray) and base.flags.c_contiguous
        if not is_whole or base.dtype != array.dtype:
            base = array
        if id(base) not in memory:
            memory[id(base)] = torch.from_numpy(base)
        offset = (array.ctypes.data - base.ctypes.data) // item
        strides = [stride // item for stride in array.strides]
        return memory[id(base)].as_strided(array.shape, strides, offset)

    fields = fields_of(batch)
    if "extras" in fields:
        extras = fields["extras"].items()
        fields["extras"] = {name: one for name, one in extras if not _is_text(one)}
    tensors = kind(**with_each(fields, view))
    device = torch.device(device)
    if device.type == "cpu":
        return tensors
    if device.type == "cuda":
        return tensors.pin_memory().to(device, non_blocking=True)
    return tensors.to(device)


def _is_text(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "U"


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
