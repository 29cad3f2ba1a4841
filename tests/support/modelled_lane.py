"""A writer and the oracle's model of its lane, which are called alike."""

import numpy as np

import mmreplay
from mmreplay import Field
from mmreplay.schema import FRAME, Schema
from mmreplay.texts import Text
from tests.support.disks import faults
from tests.support.oracle.disk import check_closed
from tests.support.oracle.model import LaneModel, Model

ACTION = Field((), "int32", chunk=5)
EXTRAS = {"x": Field((2,), "int16", chunk=3)}
EPISODE = {"label": Field((11000,), "int32"), "task": Text(9000)}  # in chunk files of 1 and of 7
FRAMES = {
    "raw": Field((3,), "int32", "raw", chunk=4),
    "lz4": Field((3,), "int32", "lz4", chunk=2, shard=6),
    "dict": {
        "seen": Field((2, 2), "int32", "zstd", chunk=3, shard=6),
        "large": Field((1100,), "int32", "raw", chunk=3),  # environment by environment
    },
}


class KeptLane(LaneModel):
    """A model that knows what a power cut leaves: `durable` rows and final observations."""

    durable = (0, 0)

    def is_running(self):
        return [env in self.running for env in range(self.n)]

    def end(self, envs):
        before = len(self.finals)
        super().end(envs)
        # A reset makes final observations of durable steps durable.
        if len(self.finals) > before and self.durable[0] == len(self.rows):
            self.flush()

    def flush(self):
        self.durable = len(self.rows), len(self.finals)

    def die(self):
        """And be recovered, which makes final observations durable, and nothing else."""
        self.end_session()
        self.durable = self.durable[0], len(self.finals)

    def lose_power(self):
        """Only what is durable is left; episodes that ran at that row end there."""
        self.cut(self.durable[0])
        self.flush()

    def undo(self):
        """The newest step, with which no episode began, was not taken."""
        for env, one in self.rows.pop().items():
            if one.over:
                self.finals.remove(one)
            one.over = False
            one.steps.pop()
            one.frames.pop()
            self.running[env] = one


class Play:
    """A writer and its model, which are called alike; `call` makes each call of the writer."""

    def __init__(self, path, kind, lanes, *, capacity=None, **given):
        self.path, self.lanes, self.n = path, lanes, lanes or 1
        fields = {"frame": FRAMES[kind], "action": ACTION, "extras": EXTRAS}
        schema = Schema.make(FRAMES[kind], ACTION, EXTRAS, episode=EPISODE)
        self.model = KeptLane(schema, lanes, capacity)
        self.call = lambda do: do()
        self._newest, self._count = [0] * self.n, 0  # numbers of the observations
        self.open(**fields, lanes=lanes, capacity=capacity, episode=EPISODE, **given)

    def open(self, **given):
        self.writer = mmreplay.create(self.path, append=True, flush_s=0, **given)
        assert self.writer.rows == len(self.model.rows)

    def _observe(self, envs):
        """The next observations of these environments, by environment and key."""
        for env in envs:
            self._count += 1
            self._newest[env] = self._count
        return {
            env: {
                key: (number + np.arange(int(np.prod(one.shape)))).reshape(one.shape)
                for key, one in self.model.schema.frames.items()
            }
            for env, number in enumerate(self._newest)
        }

    def _given(self, frames):
        """As `reset` and `step` take them."""
        every = {
            key: np.stack([frames[env][key] for env in range(self.n)]).astype(np.int32)
            for key in self.model.schema.frames
        }
        if self.lanes is None:
            every = {key: one[0] for key, one in every.items()}
        return every if self.model.schema.is_dict else every[FRAME]

    def reset(self, which):
        frames = self._observe(which)
        every = [
            {"label": np.full(11000, number), "task": f"task {number}", "started": number}
            for number in self._newest
        ]
        self.model.reset({env: frames[env] for env in which}, {env: every[env] for env in which})
        given = self._given(frames)
        if self.lanes is None:
            self.call(lambda: self.writer.reset(given, **every[0]))
            return
        mask = np.isin(np.arange(self.n), which)
        fields = {name: [one[name] for one in every] for name in every[0]}
        self.call(lambda: self.writer.reset(given, None if mask.all() else mask, **fields))

    def say(self):
        """A field of the episodes of the newest steps, where there are any in this session."""
        self._count += 1
        able = [env for env in range(self.n) if self.model.newest(env) is not None]
        label = np.full(11000, self._count)
        if able:
            self.model.say({env: {"label": label} for env in able})
            mask = None if self.lanes is None else np.isin(np.arange(self.n), able)
            self.call(lambda: self.writer.episode(mask, label=label))

    def step(self, luck=None, terminated=(), truncated=()):
        """One step; by chance, or with which the episodes of some environments end."""
        t, n, running = len(self.model.rows), self.n, np.array(self.model.is_running())
        flags = [np.isin(np.arange(n), one) for one in (terminated, truncated, ())]
        if luck is not None:
            flags = [
                np.array([luck.random() < chance for _ in range(n)]) for chance in (0.15, 0.1, 0.1)
            ]
        terminated, truncated, lost = (one & running for one in flags)
        frames = self._observe(running.nonzero()[0].tolist())
        actions = np.array([t * 3 + env + 1 for env in range(n)], np.int32)
        rewards = np.array([t / 2 + env + 1 for env in range(n)], np.float32)
        x = np.array([[t + 1, -env - 1] for env in range(n)], np.int16)
        names = ("terminated", "truncated", "life_lost")
        self.model.step(
            {
                env: (
                    actions[env],
                    rewards[env],
                    frames[env],
                    dict(zip(names, (terminated[env], truncated[env], lost[env]), strict=True)),
                    {"x": x[env]},
                )
                for env in sorted(self.model.running)
            }
        )
        given = self._given(frames)
        if self.lanes is None:
            values = actions[0], rewards[0], given, terminated[0], truncated[0]
            self.call(lambda: self.writer.step(*values, life_lost=bool(lost[0]), x=x[0]))
            return
        more = {"mask": None if running.all() else running, "x": x}
        more["life_lost"] = lost if lost.any() else None
        self.call(lambda: self.writer.step(actions, rewards, given, terminated, truncated, **more))

    def play(self, luck):
        """One call, of those that make sense now."""
        n = self.n
        idle = [env for env in range(n) if env not in self.model.running]
        if len(idle) == n or luck.random() < (0.7 if idle else 0.04):
            some = idle if idle and luck.random() < 0.8 else list(range(n))
            if luck.random() < 0.2:
                self.say()
            self.reset(some if n == 1 else sorted(luck.sample(some, luck.randint(1, len(some)))))
        else:
            self.step(luck)
        assert self.writer.rows == len(self.model.rows)

    def flush(self):
        self.model.flush()
        self.call(self.writer.flush)

    def end(self, how, power_cut=None, *, check=True):
        if how == "close":
            self.model.end_session()
            self.model.flush()
            self.call(self.writer.close)
            if check:
                store = Model(self.model.schema, [])
                store.lanes = [self.model]
                check_closed(self.path, store)
            return
        faults.kill(self.writer)
        if how == "kill":
            self.model.die()
        else:
            self.model.lose_power()
            power_cut()
