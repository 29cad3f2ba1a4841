"""`load`: open stores for training, by path, list or pattern.

Invariant: lanes are numbered in the order of the stores; a pattern's are sorted by name.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from types import EllipsisType
from typing import Any

from mmreplay.arguments import check_seed, true_or_false
from mmreplay.batches.settings import Settings
from mmreplay.datasets.dataset import Dataset, Seed
from mmreplay.datasets.prioritized import PrioritizedDataset
from mmreplay.datasets.read_ahead import checked_prefetch
from mmreplay.datasets.updates import Updates
from mmreplay.errors import SchemaError
from mmreplay.reading.store import Store
from mmreplay.sampling.priority_draws import Prioritization
from mmreplay.system import user_paths


def load(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    stack: int | EllipsisType | None = ...,
    n_step: int = 1,
    gamma: float = 0.99,
    seed: Seed = 0,
    *,
    padding: str | None = None,
    stack_axis: int = 0,
    clip_reward: tuple[float, float] | None = None,
    prefetch: int = 0,
    episode: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    update: Sequence[str] = (),
    cache: str | os.PathLike[str] | None = None,
    prioritized: bool | Mapping[str, Any] = False,
) -> Dataset:
    """Open stores for training; rows are only read.

    Args:
        path: one store, a list of stores, or a glob pattern; their lanes are numbered together. A
            store may be the URL of an archive, which is pulled to `cache` first.
        stack: frames per observation; None for a single frame without a stack axis. By default 4
            for gray images (uint8 frames of two axes) and None for everything else, in a dict for
            each key.
        n_step: number of steps in a return (fewer at the end of an episode), at most 65,536.
        gamma: discount per step, in [0, 1].
        seed: of the sampling.
        padding: ``reset`` repeats an episode's first frame before it, ``zero`` pads with 0; None
            takes the first store's.
        stack_axis: 0 puts the frames first, -1 last.
        clip_reward: (low, high), to which each reward is clipped before it is summed; None does
            not clip.
        prefetch: batches to read ahead in threads, for `sample`, `sample_sequences`,
            `sample_portions`, `batches` and `sequence_batches`: the same batches, read while you
            train on the one before; at most 1,024. Each takes the memory of a batch. Worth it for
            frames that are compressed or not in memory. For live stores see docs/semantics.md.
        episode: names of fields of episodes; a batch has them as ``extras["episode.NAME"]``.
        columns: the names of the extra columns to read, derived ones among them; None for all.
        update: the derived columns to change by `Dataset.update`, also while the store is written.
        cache: a directory for archives, which stay there: only what is new is received next time.
        prioritized: sample by priority, as a `PrioritizedReplayBuffer` does, also while others
            write the rows; priorities are stored beside them. A dict has settings of
            `mmreplay.sampling.priority_draws.Prioritization`, such as ``{"alpha": 0.7}``.

    Raises:
        StoreNotFoundError: there is no store, or the pattern matches nothing.
        SchemaError: stores whose rows differ, a store named twice, an unknown column, or a setting
            out of its range.
        LockedError: another process updates one of these columns, or changes the priorities.
        MmreplayError: of an archive, as for `pull`.
    """
    check_seed(seed)
    checked_prefetch(prefetch)
    how = _priorities(prioritized)
    for name, value in (("columns", columns), ("update", update)):
        if isinstance(value, str):
            raise SchemaError(f"{name}: expected a list of names, found {value!r:.80}")
    if cache is not None:
        path = _pulled(path, cache)
    paths = [user_paths.absolute_path(one, "load") for one in user_paths.matching(path, "load")]
    store = Store(paths, padding=padding, columns=columns)
    stack, stacked = store.schema.stacks(stack)
    settings = Settings(
        stack,
        n_step,
        gamma,
        store.padding,
        stack_axis,
        clip_reward,
        stacked,
        store.checked_fields(episode),
    )
    if how is None:
        data = Dataset(store, settings, seed, prefetch)
    else:
        data = PrioritizedDataset(store, settings, seed, prefetch, how)
    if update:
        data.updates = Updates(store.live, update)
    return data


def _priorities(given: bool | Mapping[str, Any]) -> Prioritization | None:
    """How to sample by priority; None: not at all."""
    if not isinstance(given, Mapping):
        return Prioritization() if true_or_false("prioritized", given) else None
    known = {field.name for field in dataclasses.fields(Prioritization)}
    if unknown := sorted(str(name) for name in given.keys() - known):
        raise SchemaError(f"prioritized: expected settings of {sorted(known)}, found {unknown}")
    return Prioritization(**given)


def _pulled(path: Any, cache: Any) -> Any:
    """Paths in place of the URLs of archives."""
    from mmreplay.archive.pull import pull_to_cache  # noqa: PLC0415 (needed by few)

    if user_paths.is_url(path):
        return pull_to_cache(path, cache)
    return [_pulled(one, cache) for one in path] if isinstance(path, (list, tuple)) else path
