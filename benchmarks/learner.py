"""A small learner in numpy, to see what the order of its examples does to it.

It predicts, from a frame and the one three steps before it, the rewards of the next twenty steps:
neighbours in an episode have nearly the same of both.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

import mmreplay
from benchmarks.experience import frames_of

__all__ = ["Examples", "Learner", "examples"]

_AHEAD = 20
_BEHIND = 3
_HIDDEN = 64
_RATE = 1e-3
_LOOKED_AT = 4_000  # examples, for the loss


@dataclasses.dataclass(frozen=True, slots=True)
class Examples:
    """One for each transition of a vector lane, by id.

    Attributes:
        inputs: (ids, n) float32.
        targets: (ids,) float32, of mean 0 and variance 1.
        ids: (transitions,) int64.
    """

    inputs: Any
    targets: Any
    ids: Any


def examples(path: Path) -> Examples:
    """Of a store of one vector lane."""
    with mmreplay.open(path) as store:
        (lane,) = store.lanes
        frames = np.concatenate(
            [frames_of(lane)[t : t + 512, :, ::6, ::6] for t in range(0, lane.rows, 512)]
        )
        begun, rewards = np.cumsum(lane.resets[:] != 0, 0), np.sign(lane.rewards[:])
        numbers = np.where(lane.step[:] != 0, begun, -1)
    n_ticks, width = numbers.shape
    pixels = frames.reshape(n_ticks, width, -1).astype(np.float32) / 255
    before = np.roll(pixels, _BEHIND, 0)
    targets = np.zeros(numbers.shape, np.float32)
    for ahead in range(_AHEAD):
        same = np.roll(numbers, -ahead, 0) == numbers
        same[n_ticks - ahead :] = False
        targets += np.where(same, np.roll(rewards, -ahead, 0), 0)
    there = numbers >= 0
    targets = (targets - targets[there].mean()) / (targets[there].std() + 1e-6)
    inputs = np.concatenate((pixels, pixels - before), -1)
    return Examples(inputs.reshape(n_ticks * width, -1), targets.reshape(-1), np.flatnonzero(there))


class Learner:
    """A network of one hidden layer, moved by Adam (Kingma and Ba 2015)."""

    def __init__(self, shown: Examples, seed: int) -> None:
        random = np.random.default_rng(seed)
        n = shown.inputs.shape[1]
        self._shown = shown
        self._weights = [
            (random.standard_normal((n, _HIDDEN)) / n**0.5).astype(np.float32),
            np.zeros(_HIDDEN, np.float32),
            (random.standard_normal(_HIDDEN) / _HIDDEN**0.5).astype(np.float32),
            np.zeros(1, np.float32),
        ]
        self._moments = [[np.zeros_like(one) for one in self._weights] for _ in range(2)]
        self._n_steps = 0
        self._looked_at = shown.ids[:: max(len(shown.ids) // _LOOKED_AT, 1)]

    def _forward(self, ids: Any) -> tuple[Any, Any, Any]:
        inputs = self._shown.inputs[ids]
        first, shift, second, bias = self._weights
        hidden = np.maximum(inputs @ first + shift, 0)
        return inputs, hidden, hidden @ second + bias - self._shown.targets[ids]

    def loss(self) -> float:
        """The mean squared error over examples of all the data; 1 if it has learned nothing."""
        return float((self._forward(self._looked_at)[2] ** 2).mean())

    def learn(self, ids: Any) -> None:
        """One step of the gradient of a batch."""
        inputs, hidden, error = self._forward(ids)
        error = (error / len(ids)).astype(np.float32)
        back = error[:, None] * self._weights[2] * (hidden > 0)
        gradients = [inputs.T @ back, back.sum(0), hidden.T @ error, error.sum(keepdims=True)]
        self._n_steps += 1
        one, two = (1 - decay**self._n_steps for decay in (0.9, 0.999))
        for weight, gradient, mean, square in zip(
            self._weights, gradients, *self._moments, strict=True
        ):
            mean[:] += 0.1 * (gradient - mean)
            square[:] += 0.001 * (gradient**2 - square)
            weight[:] -= _RATE * (mean / one) / (np.sqrt(square / two) + 1e-8)
