"""Writers and the model of what they should have written, moved together.

Invariant: the model moves if and only if the writer's call returns.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from mmreplay import Field
from tests.support.oracle.layout import random_value
from tests.support.oracle.model import FLAGS, LANE_SHIFT, ROW_MASK, Model, stored

Array = npt.NDArray[Any]

MODES = ("at once", "next step", "any")
"""When environments are reset; see `Pair.play`."""
FIELDS = {
    "frame": Field((3,), "float32", "raw", chunk=8),
    "action": Field((), "int64", chunk=8),
    "extras": {"x": Field((), "int8")},
}
"""Of a store in short chunks."""


class Numbers:
    """Values that count up and are never 0; those of small dtypes begin again at some time."""

    def __init__(self):
        self._given = 0

    def __call__(self, field, _):
        self._given += 1
        size, dtype = int(np.prod(field.shape)), field.dtype
        if dtype.kind == "b":
            return np.full(field.shape, self._given % 3 > 0)
        most = {1: 100, 2: 2000}.get(dtype.itemsize, 1 << 20)
        numbers = 1 + (self._given + np.arange(size) * 7) % most
        return numbers.astype(dtype).reshape(field.shape)


class Pair:
    def __init__(self, writers, model, random, values=random_value):
        if not isinstance(writers, Sequence):
            writers = [writers] * len(model.lanes)
        self.writers, self.model, self.random, self._values = [*writers], model, random, values
        self.schema = model.schema

    @property
    def writer(self):
        return self.writers[0]

    @property
    def lane(self):
        """The model of the first lane."""
        return self.model.lanes[0]

    def reopened(self, writer):
        """Go on with another writer: all episodes are over."""
        self.writers = [writer]
        self.model.end_session()

    # ------------------------------------------------------------ single calls

    def reset(self, envs=None, lane=0):
        """Begin episodes in some environments of a lane, or in all."""
        model, writer = self.model.lanes[lane], self.writers[lane]
        chosen = set(range(model.n) if envs is None else envs)
        frames = [self.frame() for _ in range(model.n)]
        fields, more = self._fields(model, chosen)
        for env in sorted(chosen):
            fields[env]["started"] = len(model.rows) * 1000 + env
        more["started"] = self._column(model, fields, "started")
        if writer is not None and model.environments is None:
            if chosen:
                writer.reset(self._form(frames[0]), **more)
        elif writer is not None:
            given = self._together(frames)
            if len(chosen) == model.n and self.random.random() < 0.5:
                writer.reset(given, **more)
            else:
                writer.reset(given, _mask(model.n, chosen), **more)
        model.reset({env: frames[env] for env in sorted(chosen)}, fields)

    def say(self, envs=None, lane=0):
        """Fields of the episodes of the newest steps of some environments, or of all."""
        model, writer = self.model.lanes[lane], self.writers[lane]
        chosen = set(range(model.n) if envs is None else envs)
        fields, more = self._fields(model, chosen)
        if model.environments is not None and envs is not None:
            more["mask"] = _mask(model.n, chosen)
        if writer is not None:
            writer.episode(**more)
        model.say(fields)

    def _fields(self, model, chosen):
        """Values of some fields of episodes, by environment, and as a writer takes them."""
        names = [name for name in self.schema.episode if self.random.random() < 0.7]
        names = [name for name in names if name != "started" and chosen]
        one = {name: self._values(self.schema.episode[name], self.random) for name in names}
        alike = self.random.random() < 0.3  # all environments get the same
        fields = {
            env: one
            if alike
            else {name: self._values(self.schema.episode[name], self.random) for name in names}
            for env in sorted(chosen)
        }
        fields = {env: dict(given) for env, given in fields.items()}
        if alike:
            return fields, one
        return fields, {name: self._column(model, fields, name) for name in names}

    def _column(self, model, fields, name):
        """A field of all environments, or of the only one."""
        if model.environments is None:
            return fields[0][name] if fields else 0
        known = next((given[name] for given in fields.values()), 0)
        return [fields[env][name] if env in fields else known for env in range(model.n)]

    def step(self, terminated=(), truncated=(), life_lost=(), *, lane=0):
        """A step of all environments of which an episode runs, with flags in some of these.

        If there is none, the writer of many is asked all the same, and nothing comes of it.
        """
        model, writer, schema = self.model.lanes[lane], self.writers[lane], self.schema
        everyone, here = range(model.n), sorted(model.running)
        frames = [self.frame() for _ in everyone]
        actions = [self._values(schema.action, self.random) for _ in everyone]
        rewards = [self._reward(len(model.rows) * model.n + env) for env in everyone]
        given = schema.extras | {
            name: one for name, one in schema.derived.items() if self.random.random() < 0.5
        }
        extras = [
            {name: self._values(one, self.random) for name, one in given.items()} for _ in everyone
        ]
        which = dict(zip(FLAGS, (terminated, truncated, life_lost), strict=True))
        flags = [{name: env in some for name, some in which.items()} for env in everyone]
        if writer is not None and model.environments is None:
            more = {name: self._value(value) for name, value in extras[0].items()}
            action, frame = self._value(actions[0]), self._form(frames[0])
            writer.step(action, rewards[0], frame, **flags[0], **more)
        elif writer is not None:
            columns = {name: np.array([one[name] for one in flags]) for name in FLAGS}
            more = {name: np.stack([one[name] for one in extras]) for name in given}
            if len(here) < model.n or self.random.random() < 0.3:
                more["mask"] = _mask(model.n, here)
            writer.step(
                np.stack(actions), np.array(rewards), self._together(frames), **columns, **more
            )
        if here:
            model.step({e: (actions[e], rewards[e], frames[e], flags[e], extras[e]) for e in here})

    def update(self, data, most=20):
        """Other values of some derived columns, by ids of which some were evicted, or are -1."""
        ids = [
            n << LANE_SHIFT | row * lane.n + env
            for n, lane in enumerate(self.model.lanes)
            for row, there in enumerate(lane.rows)
            for env in there
        ]
        chosen = self.random.choice([*ids, -1], (int(self.random.integers(1, most)), 2))
        if self.random.random() < 0.5:
            chosen = chosen[:, 0]
        names = [name for name in self.schema.derived if self.random.random() < 0.7]
        fields = {name: self.schema.derived[name] for name in names}
        values = {
            name: np.stack([self._values(one, self.random) for _ in range(chosen.size)]).reshape(
                *chosen.shape, *one.shape
            )
            for name, one in fields.items()
        }
        late = data.n_late_updates
        data.update(chosen, **values)
        n_late = 0
        for number, one in enumerate(chosen.reshape(-1).tolist()):
            if one != -1:
                lane, entry = self.model.lanes[one >> LANE_SHIFT], one & ROW_MASK
                row, _ = divmod(entry, lane.n)
                n_late += row < lane.first
                for name, field in fields.items():
                    lane.update(entry, name, values[name].reshape(-1, *field.shape)[number])
        if data.n_late_updates != late + n_late:
            raise AssertionError(
                f"late updates: expected {n_late}, found {data.n_late_updates - late}"
            )

    def tag(self, path):
        """Fields of some whole episodes of a store that nobody writes."""
        episodes = self.model.episodes()
        chosen = np.flatnonzero(self.random.random(len(episodes)) < 0.5).tolist()
        given = {
            name: [self._values(field, self.random) for _ in chosen]
            for name, field in self.schema.episode.items()
            if self.random.random() < 0.7
        }
        if chosen and given:
            mmreplay.tag(path, chosen, **given)
        for place, number in enumerate(chosen):
            _, one = episodes[number]
            for name, values in given.items():
                one.fields[name] = stored(self.schema.episode[name], values[place])

    # ------------------------------------------------------------ longer stretches

    def episode(self, episode, env=0, lane=0):
        """One whole episode of one environment; those of others that run go on beside it."""
        self.reset([env], lane)
        for number in range(episode.length):
            flags = episode.flags(number)
            self.step(*([env] * flags[name] for name in FLAGS), lane=lane)

    def play(self, n_steps, end=0.1, mode="at once", long=()):
        """Steps in all lanes with random ends; `mode` says when an environment is reset.

        ``at once``: before the next step; ``next step``: after it; ``any``: some steps later, and
        others in mid-episode, or twice. Environments in `long` do not end.
        """
        for number in range(n_steps):
            for lane in range(len(self.model.lanes)):
                if not number or len(self.model.lanes) == 1 or self.random.random() < 0.8:
                    self._play_one(lane, end, mode, set(long))

    def _play_one(self, lane, end, mode, long):
        model, random = self.model.lanes[lane], self.random
        everyone = set(range(model.n))
        some = everyone - long
        idle = everyone - model.running.keys()
        late = idle if mode == "next step" and model.rows and idle != everyone else set()
        begin = idle - late
        if mode == "any":
            begin = {env for env in idle if random.random() < 0.7}
            if idle == everyone and not begin:
                begin = {int(random.integers(len(everyone)))}
        if begin:
            self.reset(begin, lane)
        if mode == "any" and random.random() < 0.1:
            self.reset([env for env in some if random.random() < 0.3], lane)
        here = sorted(some & model.running.keys())
        picked = [[env for env in here if random.random() < end / 2] for _ in FLAGS]
        able = [env for env in range(model.n) if model.newest(env) is not None]
        if self.schema.episode and able and random.random() < 0.2:
            whole = len(able) == model.n and random.random() < 0.5
            self.say(None if whole else [env for env in able if random.random() < 0.5], lane)
        self.step(*picked, lane=lane)
        if late:
            self.reset(late, lane)

    # ------------------------------------------------------------ values, and their forms

    def frame(self):
        """The next frame of one environment, or a dict of them."""
        values = {name: self._values(one, self.random) for name, one in self.schema.frames.items()}
        return values if self.schema.is_dict else next(iter(values.values()))

    def frames(self):
        """What a call of many environments may be given: (n, *frame), or a dict of these."""
        return self._together([self.frame() for _ in range(self.lane.n)])

    def _form(self, frame):
        """The same frame, in memory order of its own or not."""
        if isinstance(frame, dict):
            return {name: self._form(one) for name, one in reversed(frame.items())}
        pick = self.random.random()
        if pick < 0.1 and frame.ndim:
            return np.asfortranarray(frame)
        if pick < 0.2 and frame.ndim:
            return np.repeat(frame, 2, axis=-1)[..., ::2]
        return frame

    def _value(self, value):
        pick = self.random.random()
        if pick < 0.3 and not value.shape:
            return value.item()
        if pick < 0.5 and not value.shape:
            return value[()]
        return value

    def _together(self, frames):
        if self.schema.is_dict:
            return {name: np.stack([one[name] for one in frames]) for name in self.schema.frames}
        return np.stack(frames)

    def _reward(self, number):
        """Mostly one that no other step has."""
        pick = self.random.random()
        if pick < 0.1:
            return -0.0
        if pick < 0.5:
            return float(np.float32(self.random.normal()))
        return (number + 1) / 8 * float(self.random.choice([-1, 1]))


def _mask(n, envs):
    return np.isin(np.arange(n), list(envs))


def of_writer(writer, seed=0):
    """A new lane's writer and its model; a value comes but once."""
    environments = len(writer) if hasattr(writer, "__len__") else None
    model = Model(writer.schema, environments=environments)
    return Pair([writer], model, np.random.default_rng(seed), Numbers())
