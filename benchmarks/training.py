"""Epochs of tensors: `loader` beside a `DataLoader` over arrays in RAM that stacks per item.

The other one is what people write: an array of frames in memory, a `__getitem__` that joins those
of one transition, torch's own collate and shuffling. It needs torch, which nothing else here does.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks.experience import ENVIRONMENT_SPEED, Tape, one_lane, read_tape, recorded
from benchmarks.naive import check_batch
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock

__all__ = ["run"]

BATCH = 256
STACK = 4
_CHECK_EVERY = 50
_OURS = "loader"
_RAM = "RAM, per item"
_AT_LEAST = 1.3


class Items:
    """Transitions of a tape by number, as a dataset of torch."""

    def __init__(self, tape: Tape) -> None:
        is_last = np.roll(tape.resets, -1) == 1
        self._tape, self._rows = tape, np.flatnonzero(~is_last)
        starts = np.flatnonzero(tape.resets)
        self._begin = starts[starts.searchsorted(self._rows, "right") - 1]
        self._back = np.arange(1 - STACK, 1)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        tape, row = self._tape, self._rows[number]
        seen = np.maximum(row + self._back, self._begin[number])
        following = np.maximum(row + 1 + self._back, self._begin[number])
        return (
            tape.frames[seen],
            tape.frames[following],
            tape.actions[row],
            tape.rewards[row],
            tape.non_terminals[row],
        )


def run(result: Result, scale: Scale, data: Path) -> None:
    """Of the last game: each kind by itself, as threads and workers read beside what is timed."""
    import torch
    from torch.utils.data import DataLoader

    from mmreplay.adapters.torch import TransitionDataset, loader

    game = scale.games[-1]
    tape = read_tape(recorded(data, game, "raw", scale))
    path, _ = one_lane(data, game, "lz4", tape, ENVIRONMENT_SPEED)
    items, numbered = Items(tape), TransitionDataset(path, stack=STACK)
    given: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    plain = loader(path, BATCH, stack=STACK, seed=0, prefetch=0)
    cases: dict[str, Any] = {
        _OURS: loader(path, BATCH, stack=STACK, seed=0),
        f"{_OURS}, no thread": plain,
        f"{_OURS}, 2 workers": DataLoader(plain, batch_size=None, num_workers=2),
        "TransitionDataset": DataLoader(numbered, collate_fn=TransitionDataset.collate, **given),
        _RAM: DataLoader(items, **given),
        f"{_RAM}, 2 workers": DataLoader(items, num_workers=2, **given),
    }
    torch.manual_seed(0)
    clock, names = Clock(), list(cases)
    for number in range(scale.runs):
        clock.new_run()
        random.Random(number).shuffle(names)
        for name in names:
            whole = tape.n_transitions // BATCH
            _epoch(
                clock, name, cases[name], whole if name.startswith(_OURS) else scale.rounds, tape
            )
        print(f"{game}: run {number + 1} of {scale.runs}", flush=True)
    for name in cases:
        result.add(f"{game}: {name}, a batch", clock.microseconds(name, np.mean), "us")
    for name in cases:
        if name != _RAM:
            bound = _AT_LEAST if name == _OURS else None
            ratio = clock.ratio(_RAM, name, np.mean)
            result.add(f"{game}: {_RAM}, by {name}", ratio, "times", at_least=bound)


def _epoch(clock: Clock, name: str, case: Any, n_batches: int, tape: Tape) -> None:
    """Time so many batches: all of what decodes more at the beginning of an epoch."""
    batches = iter(case)
    if "workers" in name:
        next(batches)  # they start with it
        n_batches -= 1
    for turn in range(min(n_batches, tape.n_transitions // BATCH)):
        batch = clock.time(name, lambda: next(batches))
        if not name.startswith(_RAM) and turn % _CHECK_EVERY == 0:
            check_batch(_as_arrays(batch), tape, stack=STACK)


def _as_arrays(batch: Any) -> Any:
    values = {one.name: getattr(batch, one.name) for one in dataclasses.fields(batch)}
    return mmreplay.Batch(
        **{
            name: value if isinstance(value, dict) else value.numpy()
            for name, value in values.items()
        }
    )
