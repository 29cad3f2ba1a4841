"""The layout of a store, what happens in an episode, and values that a field can hold.

Invariant: nothing here imports hypothesis, so that a child process starts quickly.
"""

import dataclasses
from typing import TypeVar

import numpy as np

import mmreplay
from mmreplay import ReplayBuffer
from mmreplay.schema import Field, Schema
from mmreplay.texts import Text
from tests.support.oracle.model import Model

Buffer = TypeVar("Buffer", bound=ReplayBuffer)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    frame: Field | dict[str, Field]
    action: Field
    extras: dict[str, Field] = dataclasses.field(default_factory=dict)
    reward_dtype: str = "float32"
    capacity: int | None = None  # transitions of a lane
    # how many step together in a lane; None for one, without an axis for it
    environments: int | None = None
    padding: str = "reset"
    lanes: int | None = None  # None for a store that is one lane; or how many named lanes it has
    episode: dict[str, Field | Text] = dataclasses.field(default_factory=dict)
    derived: dict[str, Field] = dataclasses.field(default_factory=dict)

    @property
    def schema(self):
        """The schema of its steps."""
        given = self.frame, self.action, self.extras, self.reward_dtype
        return Schema.make(*given, episode=self.episode, derived=self.derived)

    def create_arguments(self):
        """Keywords for `mmreplay.create`, and for `ReplayBuffer`, of a store that is one lane."""
        given = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        given["lanes"] = given.pop("environments")
        return {name: value for name, value in given.items() if name != "lanes" or value}

    def create(self, path, *, append=False, **settings):
        """Make the store, which is one lane, and open it; nothing is flushed by the clock."""
        arguments = self.create_arguments() | {"flush_s": 0} | settings
        return mmreplay.create(path, **arguments, append=append)

    def create_lanes(self, path, **settings):
        """As `create`, of a store of any number of lanes: the writer of each."""
        if self.lanes is None:
            return [self.create(path, **settings)]
        names = [f"actor-{number}" for number in range(self.lanes)]
        return [self.create(path, lane=name, **settings) for name in names]

    def create_buffer(self, path, kind, **settings):
        """Make the store, which is one lane, and open it as a buffer of that kind."""
        return kind(path, **self.create_arguments() | {"flush_s": 0} | settings)

    def model(self):
        """A model of the empty store."""
        return Model(self.schema, [self.capacity] * (self.lanes or 1), self.environments)


@dataclasses.dataclass(frozen=True, slots=True)
class Episode:
    """What happens in one episode."""

    length: int
    end: str  # ``terminated``, ``truncated``, ``both``, or ``interrupted`` by whatever comes next
    lives_lost: frozenset[int] = frozenset()  # steps at which a life is lost

    def flags(self, step):
        """The flags of a step."""
        last = step == self.length - 1
        return {
            "terminated": last and self.end in {"terminated", "both"},
            "truncated": last and self.end in {"truncated", "both"},
            "life_lost": step in self.lives_lost,
        }


def random_value(one, random):
    """Any value that a field can hold, of few different ones, so that it can be compressed."""
    if isinstance(one, Text):
        return "".join(random.choice([*"aZ é✓"], random.integers(one.width // 3 + 1)))
    kind = one.dtype.kind
    if kind == "b":
        return np.asarray(random.random(one.shape) < 0.5)
    if kind in "iu":
        info = np.iinfo(one.dtype)
        choices = np.array([0, 1, 2, 77, info.min, info.max], one.dtype)
    else:
        choices = np.array([0.0, -0.0, 1.5, -2.25, np.inf, -np.inf, np.nan], one.dtype)
    return np.asarray(random.choice(choices, one.shape), one.dtype)
