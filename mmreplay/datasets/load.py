"""`load`: open stores for training, by path, list or pattern.

Invariant: lanes are numbered in the order of the stores; a pattern's are sorted by name.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import EllipsisType
from typing import Any

from mmreplay.arguments import check_seed
from mmreplay.batches.settings import Settings
from mmreplay.datasets.dataset import Dataset, Seed
from mmreplay.datasets.read_ahead import checked_prefetch
from mmreplay.errors import SchemaError, StoreNotFoundError
from mmreplay.reading.store import Store
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
) -> Dataset:
    """Open stores for training, read-only.

    Args:
        path: one store, a list of stores, or a glob pattern; their lanes are numbered together.
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

    Raises:
        StoreNotFoundError: there is no store, or the pattern matches nothing.
        SchemaError: stores whose rows differ, a store named twice, or a setting out of its range.
    """
    check_seed(seed)
    checked_prefetch(prefetch)
    store = Store(_matching(path), padding=padding)
    stack, stacked = store.schema.stacks(stack)
    settings = Settings(stack, n_step, gamma, store.padding, stack_axis, clip_reward, stacked)
    return Dataset(store, settings, seed, prefetch)


def _matching(path: Any) -> list[Path]:
    """The paths of the stores."""
    if not isinstance(path, (str, os.PathLike)):
        if not isinstance(path, Iterable):
            raise SchemaError(f"load: expected a path, a list of them or a pattern, found {path!r}")
        paths = [match for entry in path for match in _matching(entry)]
        if not paths:
            raise StoreNotFoundError("load: expected one path or more, found an empty list")
        return paths
    location, text = user_paths.absolute_path(path), os.fspath(path)
    # Not Path.exists, which raises for a name that is too long.
    if os.path.exists(text) or not glob.has_magic(text):  # noqa: PTH110
        return [location]
    names = []
    with contextlib.suppress(ValueError):  # a NUL in the name of a directory
        names = sorted(glob.glob(text))  # noqa: PTH207 (Path.glob refuses absolute patterns)
    if not names:
        raise StoreNotFoundError(f"{text}: nothing matches this pattern")
    return [user_paths.absolute_path(name) for name in names]
