"""Batches as tensors.

Invariant: tensors are the arrays of a batch, without a copy. Memory that several of them share, as
observation and next observation do, is moved once and is shared on the device, too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

import numpy as np
import torch

from mmreplay.batches.batch import Batch, fields_of, shapes_of, with_each
from mmreplay.batches.sequences import SequenceBatch
from mmreplay.batches.windows import WindowBatch
from mmreplay.errors import SchemaError
from mmreplay.ids import Array

_ALIGNED = 64  # bytes, at which each array begins in what is sent together


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

    def together(self, device: torch.device) -> Self:
        """The same on a device, sent in one piece; each tensor keeps the memory of all."""
        pieces: list[Array] = []

        def note(memory: torch.Tensor) -> torch.Tensor:
            pieces.append(memory.numpy())
            return memory

        self._moved(note)
        sent = iter(sent_together(pieces, device))
        return self._moved(lambda _: next(sent))

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
            whole = moved[key]  # perhaps of memory that others share
            offset = whole.storage_offset() + tensor.storage_offset()
            return whole.as_strided(tensor.shape, tensor.stride(), offset)

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

    To a CUDA device they are copied together through page-locked memory, without waiting for the
    copy; each tensor then keeps the memory of all.
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
        return tensors.together(device)
    return tensors.to(device)


def _is_text(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind == "U"


def sent_together(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Copies of the arrays on a device, sent in one piece, without waiting for it on CUDA.

    torch does not give page-locked memory to another before what is sent from it has arrived.
    """
    begins = [0]
    for array in arrays:
        begins.append(begins[-1] - (-array.nbytes // _ALIGNED) * _ALIGNED)
    room = torch.empty(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
    rooms, places = room.numpy(), []
    for begin, array in zip(begins, arrays, strict=False):
        place = slice(begin, begin + array.nbytes)
        np.copyto(rooms[place].view(array.dtype).reshape(array.shape), array)
        places.append(place)
    sent = room.to(device, non_blocking=True)
    return [
        sent[place].view(torch.from_numpy(array[:0].copy()).dtype).view(array.shape)
        for place, array in zip(places, arrays, strict=True)
    ]
