"""Writers of vector environments, and the model of what they should have written, moved together.

Invariant: the model moves if and only if the writers' calls return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay import Field
from mmreplay.schema import FRAME, Schema
from tests.support.oracle.layout import random_value
from tests.support.oracle.vectors import FLAGS, VectorModel

__all__ = ["FIELDS", "Numbers", "VectorPair", "in_memory", "of_writer"]

Array = npt.NDArray[Any]
Value = Callable[[Field, np.random.Generator], Array]

FIELDS: dict[str, Any] = {
    "frame": Field((3,), "float32", "raw", chunk=8),
    "action": Field((), "int64", chunk=8),
    "extras": {"x": Field((), "int8")},
}
"""Of vector lanes in short chunks."""


class Numbers:
    """Values that count up and are never 0; those of small dtypes begin again at some time."""

    def __init__(self) -> None:
        self._given = 0

    def __call__(self, field: Field, _: np.random.Generator) -> Array:
        """The next value of a field."""
        self._given += 1
        size, dtype = int(np.prod(field.shape)), field.dtype
        if dtype.kind == "b":
            return np.full(field.shape, self._given % 3 > 0)
        most = {1: 100, 2: 2000}.get(dtype.itemsize, 1 << 20)
        numbers = 1 + (self._given + np.arange(size) * 7) % most
        return numbers.astype(dtype).reshape(field.shape)


class VectorPair:
    """See the module; what else is asked of it, the model answers.

    Args:
        writers: each of as many environments as the model has; there may be none.
        model: of the stores as they are now.
        random: chooses what happens.
        values: gives the next value of a field.
    """

    def __init__(
        self,
        writers: Sequence[Any],
        model: VectorModel,
        random: np.random.Generator,
        values: Value = random_value,
    ) -> None:
        self.writers, self.model, self.random, self._values = writers, model, random, values

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    @property
    def writer(self) -> Any:
        """The first one."""
        return self.writers[0]

    def reopened(self, writer: Any) -> None:
        """Go on with another writer: all episodes are over."""
        self.writers = [writer]
        self.model.end_session()

    def reset(self, envs: Iterable[int] | None = None) -> None:
        """Begin episodes in some environments, or in all."""
        everyone = range(self.model.width)
        chosen = set(everyone if envs is None else envs)
        mask = np.array([env in chosen for env in everyone])
        given = None if mask.all() and self.random.random() < 0.5 else mask
        frames = [self._frame() for _ in everyone]
        for writer in self.writers:
            writer.reset(self._together(frames), given)
        self.model.reset({env: frames[env] for env in chosen})

    def step(
        self,
        terminated: Iterable[int] = (),
        truncated: Iterable[int] = (),
        life_lost: Iterable[int] = (),
    ) -> None:
        """A tick of all environments of which an episode runs, with flags in some of these.

        If there is none, the writers are told so, and nothing comes of it.
        """
        model, schema, here = self.model, self.model.schema, self.model.running
        everyone = range(model.width)
        frames = [self._frame() for _ in everyone]
        actions = [self._values(schema.action, self.random) for _ in everyone]
        # Each is another one; some sums of them are not.
        least = len(model.ticks) * model.width
        rewards = [(least + n) / 8 * float(self.random.choice([-1, 1])) for n in everyone]
        extras = [
            {name: self._values(one, self.random) for name, one in schema.extras.items()}
            for _ in everyone
        ]
        which = dict(zip(FLAGS, map(set, (terminated, truncated, life_lost)), strict=True))
        columns = {name: np.array([n in some for n in everyone]) for name, some in which.items()}
        more = {name: np.stack([one[name] for one in extras]) for name in schema.extras}
        mask = np.array([env in here for env in everyone])
        if not mask.all() or self.random.random() < 0.3:
            more["mask"] = mask
        for writer in self.writers:
            writer.step(
                np.stack(actions),
                np.array(rewards, schema.reward_dtype),
                self._together(frames),
                columns["terminated"],
                columns["truncated"],
                life_lost=columns["life_lost"],
                **more,
            )
        if not here:
            return
        flags = [{name: env in some for name, some in which.items()} for env in everyone]
        model.step(
            {n: (actions[n], rewards[n], frames[n], flags[n], extras[n]) for n in sorted(here)}
        )

    def play(
        self, n_ticks: int, end: float = 0.1, mode: str = "any", long: Iterable[int] = ()
    ) -> None:
        """Steps with random ends, as one of the autoreset modes has them.

        Args:
            n_ticks: how many.
            end: about the probability that an environment's episode ends with a step.
            mode: ``at once``: an environment is reset before the next step, as in the modes "same
                step" and "disabled"; ``next step``: after it; ``any``: some steps later, and
                others in mid-episode, or twice.
            long: environments whose episodes go on.
        """
        random, everyone = self.random, set(range(self.model.width))
        some = everyone - set(long)
        for _ in range(n_ticks):
            idle = everyone - self.model.running.keys()
            late = idle if mode == "next step" and self.model.ticks else set()
            begin = idle - late
            if mode == "any":
                begin = {env for env in idle if random.random() < 0.7}
                if idle == everyone and not begin:
                    begin = {int(random.integers(len(everyone)))}
            if begin:
                self.reset(begin)
            if mode == "any" and random.random() < 0.1:
                self.reset([env for env in some if random.random() < 0.3])
            here = sorted(some & self.model.running.keys())
            self.step(*([env for env in here if random.random() < end / 2] for _ in FLAGS))
            if late:
                self.reset(late)

    def frames(self) -> Any:
        """What a call may be given: (width, *frame), or a dict of these."""
        return self._together([self._frame() for _ in range(self.model.width)])

    def _frame(self) -> Any:
        values = {n: self._values(one, self.random) for n, one in self.model.schema.frames.items()}
        return values if self.model.schema.is_dict else values[FRAME]

    def _together(self, frames: list[Any]) -> Any:
        schema = self.model.schema
        if schema.is_dict:
            return {name: np.stack([one[name] for one in frames]) for name in schema.frames}
        return np.stack(frames)


def of_writer(writer: Any, seed: int = 0) -> VectorPair:
    """A new vector lane's writer and its model; a value comes but once."""
    model = VectorModel(writer.schema, len(writer))
    return VectorPair([writer], model, np.random.default_rng(seed), Numbers())


def in_memory(width: int, capacity: int | None = None, seed: int = 0) -> VectorPair:
    """A model of numbers without a writer."""
    model = VectorModel(Schema.make(Field((), "int64"), Field(())), width, capacity)
    return VectorPair([], model, np.random.default_rng(seed), Numbers())
