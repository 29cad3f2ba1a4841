"""TorchRL: a store as the storage of its replay buffers, and batches as tensordicts.

Invariant: index i is the i-th transition of the data, by ascending id.
"""

from __future__ import annotations

from typing import Any, NoReturn, Unpack

import numpy as np

from mmreplay.adapters.source import LoadSettings, opened, reading_listed, uuids_of
from mmreplay.adapters.torch import to_tensors
from mmreplay.batches.batch import Batch
from mmreplay.batches.settings import Settings
from mmreplay.datasets.replay_buffer import ReplayBuffer
from mmreplay.errors import MissingExtraError, SchemaError
from mmreplay.ids import Array, Ids

try:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyStackStorage
except ImportError as error:
    raise MissingExtraError(
        'mmreplay.adapters.torchrl needs TorchRL: pip install "mmreplay[torchrl]"'
    ) from error

__all__ = ["StoreStorage", "to_tensordict"]


def to_tensordict(batch: Batch, settings: Settings, device: Any = "cpu") -> Any:
    """A batch in TorchRL's layout: observation and action at the root, results under ``next``.

    Args:
        batch: (B,) transitions.
        settings: the settings of the batch, as ``data.settings``.
        device: where the tensors are.

    Returns:
        a TensorDict of batch size (B,): ``observation``, or the keys of a dict observation, and
        ``action``, ``id``, ``_weight`` and the extras as in the batch; ``("next", "reward")``,
        ``done``, ``terminated`` and ``truncated`` of (B, 1), at the root as they were before the
        step, all False. A lost life is terminated. With `n_step` > 1 ``steps_to_next_obs``, int64
        (B, 1), from which TorchRL's value estimators have the discount.

    Raises:
        SchemaError: a key of the observation or an extra has one of these names, or one that
            TorchRL itself writes or reads.
    """
    tensors: Any = to_tensors(batch, device)
    terminated = tensors.non_terminal.logical_not()
    none = torch.zeros_like(terminated).unsqueeze(-1)
    own = {
        "action": tensors.action,
        "id": tensors.id,
        "_weight": tensors.weight,
        "done": none,
        "terminated": none.clone(),
        "truncated": none.clone(),
    }
    following = {
        "reward": tensors.reward.unsqueeze(-1),
        "done": (terminated | tensors.truncated | tensors.terminated).unsqueeze(-1),
        "terminated": terminated.unsqueeze(-1),
        "truncated": (tensors.truncated & ~terminated).unsqueeze(-1),
    }
    seen = _named(tensors.observation)
    _check_names({*seen}, {*tensors.extras}, {*own, *following, *_OF_TORCHRL})
    root = {
        **seen,
        **tensors.extras,
        **own,
        "next": {**_named(tensors.next_observation), **following},
    }
    if settings.n_step > 1:
        steps = torch.from_numpy(_steps(batch, settings)).to(device)
        root["steps_to_next_obs"] = steps.unsqueeze(-1)
    return TensorDict(root, batch_size=[len(batch)], device=torch.device(device))


def _named(observation: Any) -> dict[str, Any]:
    return observation if isinstance(observation, dict) else {"observation": observation}


_OF_TORCHRL = {"next", "index", "steps_to_next_obs"}
"""What TorchRL itself writes into a sample or reads from it."""


def _check_names(seen: set[str], extras: set[str], taken: set[str]) -> None:
    """Refuse names that occur twice: the later entry would overwrite the earlier one."""
    for kind, names, others in (("frame", seen, taken), ("extras", extras, taken | seen)):
        for name in sorted(names & others):
            raise SchemaError(
                f"{kind}: expected an unused name, found {name!r}, which would be overwritten; in "
                f"use are {', '.join(sorted(others))}; rename it where the store is written, or "
                f"with dataclasses.replace in a function of mmreplay.Decorated"
            )


def _steps(batch: Batch, settings: Settings) -> Array:
    """Steps of each return, int64 (B,); n_step where the episode ended or gamma hides them."""
    steps = np.full(len(batch), settings.n_step)
    if 0 < settings.gamma < 1:
        goes_on = batch.non_terminal
        steps[goes_on] = np.rint(np.log(batch.discount[goes_on]) / np.log(settings.gamma))
    return steps


class StoreStorage(LazyStackStorage):
    """A store as the storage of a TorchRL replay buffer, to sample from.

    The store is written with `mmreplay`, not through the replay buffer; with a live buffer as
    `data`, samples show what was stored so far. Index i is the transition with the i-th smallest
    id. If a buffer evicts, indices change their meaning: use samplers that remember indices, as
    those of priorities, only with stores that do not grow.

    Args:
        data: a path, a list of paths or a pattern; or a dataset, a live buffer or a
            `mmreplay.Decorated` dataset.
        device: where samples are.
        **settings: of a path, `stack`, `n_step`, `gamma`, `padding`, `stack_axis` and
            `clip_reward` of `mmreplay.load`; a dataset has its own.

    Raises:
        MmreplayError: as `mmreplay.load`; SchemaError of names as `to_tensordict`.

    Attributes:
        data: the dataset that it reads.
    """

    def __init__(self, data: Any, *, device: Any = "cpu", **settings: Unpack[LoadSettings]) -> None:
        self.data = opened(data, settings, needs=("ids", "transitions"))
        to_tensordict(self.data.transitions([]), self.data.settings)  # raises for names
        self._uuids = uuids_of(self.data)
        # A live buffer grows with each step, and looks up ids by index.
        self._ids: Ids | None = None if isinstance(self.data, ReplayBuffer) else self.data.ids
        size = self.data.capacity if self._ids is None else len(self._ids)
        super().__init__(size, device=torch.device(device))

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.data) if self._ids is None else len(self._ids)

    def get(self, index: Any) -> Any:
        """Transitions by number, a slice, a list, an array or a tensor; see `to_tensordict`.

        Slice samplers pass a tuple with one of these.

        Raises:
            IndexError: a number out of range, or what numpy does not take as an index.
        """
        if isinstance(index, tuple) and len(index) == 1:
            (index,) = index
        size = len(self)
        chosen = index.cpu().numpy() if torch.is_tensor(index) else index
        chosen = range(size)[chosen] if isinstance(chosen, slice) else chosen
        numbers = np.asarray(() if isinstance(chosen, tuple) else chosen)
        if numbers.dtype.kind not in "iu":  # a mask, `...` or nothing
            numbers = np.arange(size)[chosen]
        if numbers.size and not -size <= numbers.min() <= numbers.max() < size:
            raise IndexError(f"{self.data!r}: index {index}: there are {size} transitions")
        flat = numbers.reshape(-1).astype(np.int64) % max(size, 1)
        with reading_listed(self.data, self._uuids):
            if self._ids is None:
                ids = self.data.store.live.look(lambda at: at.at(flat))
            else:
                ids = self._ids[flat]
            batch = self.data.transitions(ids)
        out = to_tensordict(batch, self.data.settings, self.device)
        return out.reshape(numbers.shape)

    def contains(self, item: Any) -> Any:
        """Whether there is such a number, or which of several are."""
        numbers = torch.as_tensor(item)
        found = (numbers >= -len(self)) & (numbers < len(self))
        return found if found.ndim else bool(found)

    def set(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: SchemaError."""
        raise SchemaError(
            f"{self.data!r}: a StoreStorage is read-only; write with mmreplay: buffer.reset(...) "
            f"and buffer.step(...) of a ReplayBuffer that you pass as data"
        )

    def _empty(self) -> NoReturn:
        self.set()

    def state_dict(self) -> dict[str, Any]:
        """Empty: the store itself keeps the data."""
        return {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Does nothing, nor do `dumps` and `loads`: the store itself keeps the data."""

    dumps = loads = load_state_dict

    def __repr__(self) -> str:
        return f"<StoreStorage {self.data!r}>"
