"""TorchRL: a store as the storage of its replay buffers, and batches as tensordicts.

Invariant: index i is the i-th transition of the data, by ascending id.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any, NoReturn

import numpy as np

from mmreplay.adapters.source import opened, reading_listed, uuids_of
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
    """A batch in TorchRL's layout: what is seen at the root, and what came of it under ``next``.

    Args:
        batch: (B,) transitions.
        settings: with which it was made, as ``data.settings``.
        device: where it is to be.

    Returns:
        a TensorDict of batch size (B,): ``observation``, or the keys of a dict observation, and
        ``action``, ``id``, ``_weight`` and the extras as in the batch; ``("next", "reward")``,
        ``done``, ``terminated`` and ``truncated`` of (B, 1), at the root as they were before the
        step, all False. A lost life is terminated. With `n_step` > 1 ``steps_to_next_obs``, int64
        (B, 1), from which TorchRL's value estimators have the discount.

    Raises:
        SchemaError: two columns of one name there: a key of the observation, or an extra, named as
            any of these, or as one that TorchRL itself writes or reads.
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
"""What TorchRL writes into a sample, or reads from it whoever wrote it."""


def _check_names(seen: set[str], extras: set[str], taken: set[str]) -> None:
    """Refuse names that come twice: a later entry takes the place of an earlier one."""
    for kind, names, others in (("frame", seen, taken), ("extras", extras, taken | seen)):
        for name in sorted(names & others):
            raise SchemaError(
                f"{kind}: expected names that a tensordict has room for, found {name!r}, which "
                f"would be lost: taken are {', '.join(sorted(others))}; rename it where the store "
                f"is written, or by dataclasses.replace in a function of mmreplay.Decorated"
            )


def _steps(batch: Batch, settings: Settings) -> Array:
    """Steps of each return, int64 (B,); where nothing comes after it, the most that it may be."""
    steps = np.full(len(batch), settings.n_step)
    if 0 < settings.gamma < 1:
        goes_on = batch.non_terminal
        steps[goes_on] = np.rint(np.log(batch.discount[goes_on]) / np.log(settings.gamma))
    return steps


class StoreStorage(LazyStackStorage):
    """A store as the storage of a TorchRL replay buffer, to sample from.

    It is written by `mmreplay`, and not through the replay buffer: of a live buffer that is given
    as `data` samples show what was stored so far. Indices are places among the transitions, by
    ascending id: those of a buffer that evicts change their meaning, and samplers that remember
    indices, as of priorities, are for stores that do not grow.

    Args:
        data: a path, a list of paths or a pattern; or a dataset or live buffer, or a dataset
            `mmreplay.Decorated`.
        stack: of a path, as for `mmreplay.load`, and so are those that follow.
        n_step: most steps of a return.
        gamma: discount a step.
        padding: ``reset`` or ``zero``.
        stack_axis: 0 or -1.
        clip_reward: (low, high).
        device: where samples are to be.

    Raises:
        MmreplayError: as `mmreplay.load`; SchemaError of names as `to_tensordict`.

    Attributes:
        data: the dataset that it reads.
    """

    def __init__(
        self,
        data: Any,
        *,
        stack: int | EllipsisType | None = ...,
        n_step: int | None = None,
        gamma: float | None = None,
        padding: str | None = None,
        stack_axis: int | None = None,
        clip_reward: tuple[float, float] | None = None,
        device: Any = "cpu",
    ) -> None:
        settings = {
            "stack": stack,
            "n_step": n_step,
            "gamma": gamma,
            "padding": padding,
            "stack_axis": stack_axis,
            "clip_reward": clip_reward,
        }
        self.data = opened(data, settings)
        to_tensordict(self.data.transitions([]), self.data.settings)  # refuses names
        self._uuids = uuids_of(self.data)
        # A live buffer grows with each step, and looks its ids up by their place.
        self._ids: Ids | None = None if isinstance(self.data, ReplayBuffer) else self.data.ids
        size = self.data.capacity if self._ids is None else len(self._ids)
        super().__init__(size, device=torch.device(device))

    def __len__(self) -> int:
        """Transitions that can be sampled."""
        return len(self.data) if self._ids is None else len(self._ids)

    def get(self, index: Any) -> Any:
        """Transitions by number, a slice, a list, an array or a tensor; see `to_tensordict`.

        Samplers of slices give a tuple of one of these.
        """
        if isinstance(index, tuple) and len(index) == 1:
            (index,) = index
        size = len(self)
        chosen = index.cpu().numpy() if torch.is_tensor(index) else index
        numbers = np.asarray(range(size)[chosen] if isinstance(chosen, slice) else chosen)
        if numbers.dtype == np.bool_:
            numbers = numbers.nonzero()[0]
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
            f"{self.data!r}: a StoreStorage is sampled from; write with mmreplay: "
            f"buffer.reset(...) and buffer.step(...) of a ReplayBuffer that is given as its data"
        )

    def _empty(self) -> NoReturn:
        self.set()

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the store keeps what there is."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing, likewise."""

    def __repr__(self) -> str:
        return f"<StoreStorage {self.data!r}>"
