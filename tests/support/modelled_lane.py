"""A lane as a plain list of steps, a writer that is called alike, and what zarr reads of both.

Nothing of the package is used to compare them.
"""

import json

import google_crc32c
import numpy as np
import zarr

import mmreplay
from mmreplay import Field
from tests.support.disks import faults
from tests.support.documents import attributes

__all__ = ["ACTION", "EXTRAS", "FRAMES", "Model", "Play", "check_checksums"]

ACTION = Field((), "int32", chunk=5)
EXTRAS = {"x": Field((2,), "int16", chunk=3)}
FRAMES = {
    "raw": Field((3,), "int32", "raw", chunk=4),
    "lz4": Field((3,), "int32", "lz4", chunk=2, shard=6),
    "dict": {
        "seen": Field((2, 2), "int32", "zstd", chunk=3, shard=6),
        "large": Field((1100,), "int32", "raw", chunk=3),  # environment by environment
    },
}


class Model:
    """What a lane must hold: `rows` are dicts of environment -> what its step was.

    Attributes:
        finals: (id, first, number of the observation), in the order of their file.
        begins: by environment, the first row of the episode that runs, or None.
        newest: by environment, the number of its newest observation.
        durable: rows and finals that a power cut leaves.
    """

    def __init__(self, n):
        self.n, self.rows, self.finals = n, [], []
        self.begins, self.newest, self.durable = [None] * n, [0] * n, (0, 0)
        self._numbers = 0

    def number(self):
        self._numbers += 1
        return self._numbers

    def running(self):
        return [begin is not None for begin in self.begins]

    def reset(self, which):
        self._end(which)
        for env in which:
            self.begins[env], self.newest[env] = len(self.rows), self.number()

    def step(self, terminated, truncated, life_lost):
        t, row = len(self.rows), {}
        for env in range(self.n):
            if self.begins[env] is None:
                continue
            over = terminated[env] or truncated[env]
            before, self.newest[env] = self.newest[env], self.number()
            row[env] = {
                "before": before,
                "flag": not (terminated[env] or life_lost[env]),
                "end": over,
                "step": t - self.begins[env] + 1,
            }
        self.rows.append(row)
        for env in row:
            if row[env]["end"]:
                self._add_final(env)

    def _add_final(self, env):
        t, first = len(self.rows) - 1, self.begins[env]
        self.finals.append((t * self.n + env, first * self.n + env, self.newest[env]))
        self.begins[env] = None

    def _end(self, which):
        for env in which:
            if self.begins[env] is not None and self.begins[env] < len(self.rows):
                self.rows[-1][env]["end"] = True
                self._add_final(env)
                if self.durable[0] == len(self.rows):  # or a power cut would lose its place
                    self.durable = len(self.rows), len(self.finals)
            self.begins[env] = None

    def undo(self):
        """The newest step, with which no episode began, was not taken."""
        t, row = len(self.rows) - 1, self.rows.pop()
        self.finals = [one for one in self.finals if one[0] < t * self.n]
        for env, about in row.items():
            self.begins[env], self.newest[env] = t + 1 - about["step"], about["before"]

    def close(self):
        self._end(range(self.n))
        self.flush()

    def die(self):
        """And be recovered, which makes final observations durable, and nothing else."""
        self._end(range(self.n))
        self.durable = self.durable[0], len(self.finals)

    def flush(self):
        self.durable = len(self.rows), len(self.finals)

    def lose_power(self):
        """Only what is durable is left; episodes that ran at that row end there."""
        head, n_finals = self.durable
        lost = self.rows[head:]
        newest = list(self.newest)
        for row in reversed(lost):
            for env, about in row.items():
                newest[env] = about["before"]
        self.rows, kept = self.rows[:head], self.finals[:n_finals]
        self.finals = [one for one in kept if one[0] < head * self.n]
        self.begins = [None] * self.n
        ended = {last for last, _, _ in self.finals}
        for env, about in sorted((self.rows[-1] if self.rows else {}).items()):
            about["end"] = True
            if (head - 1) * self.n + env not in ended:
                self.newest[env], self.begins[env] = newest[env], head - about["step"]
                self._add_final(env)
        self.durable = len(self.rows), len(self.finals)

    # ------------------------------------------------------------ what it must read as

    def check(self, path, frame, *, n_axis, capacity=None):
        group, own = zarr.open_group(path, mode="r"), attributes(path)
        head, finals = len(self.rows), group["finals"]
        assert (own["rows"], own["finals"], own["closed"]) == (head, len(self.finals), True)
        first = self.first(capacity, own)
        base, kept = max(first - 64, 0), own["first_final"]
        assert own["first"] == first
        old = [one for one in self.finals if one[0] < base * self.n]
        assert own["episodes_before"] == len({f for _, f, _ in self.finals if f < base * self.n})
        assert kept <= len(old)
        assert finals["id"][kept:].tolist() == [one[0] for one in self.finals[kept:]]
        assert finals["first"][kept:].tolist() == [one[1] for one in self.finals[kept:]]
        numbers = [one[2] for one in self.finals[kept:]]
        for name, expected in frames_of(frame, numbers).items():
            assert np.array_equal(finals[name][kept:], expected), name
        found = {name: group[name][base:head] for name in (*COLUMNS, *frames_of(frame, []))}
        for name, column in self.columns(frame, base).items():
            expected = column if n_axis else column[:, 0]
            assert found[name].shape == expected.shape, name
            assert np.array_equal(found[name], expected), name

    def first(self, capacity, own):
        if capacity is None:
            return 0
        first, left = len(self.rows), capacity
        while first and len(self.rows[first - 1]) <= left:
            first -= 1
            left -= len(self.rows[first])
        return max(first, own["first"]) if own["first"] <= len(self.rows) else first

    def columns(self, frame, base):
        rows, n = self.rows[base:], self.n
        shape = len(rows), n
        numbers = np.zeros(shape, np.int64)
        out = {name: np.zeros(shape, np.int64) for name in ("non_terminals", "resets", "ends")}
        out |= {"step": np.zeros(shape, np.int64), "actions": np.zeros(shape, np.int64)}
        out |= {"rewards": np.zeros(shape), "extras/x": np.zeros((*shape, 2), np.int64)}
        for at, row in enumerate(rows):
            for env, about in row.items():
                numbers[at, env] = about["before"]
                out["non_terminals"][at, env] = about["flag"]
                out["resets"][at, env] = about["step"] == 1
                out["ends"][at, env] = about["end"]
                out["step"][at, env] = about["step"]
                out["actions"][at, env] = action_of(base + at, env)
                out["rewards"][at, env] = reward_of(base + at, env)
                out["extras/x"][at, env] = base + at + 1, -env - 1
        return out | frames_of(frame, numbers)


COLUMNS = ("actions", "rewards", "non_terminals", "resets", "ends", "step", "extras/x")


def action_of(t, env):
    return t * 3 + env + 1


def reward_of(t, env):
    return t / 2 + env + 1


def frames_of(frame, numbers):
    """Each column of frames, of observations with these numbers; 0 is none, and zeros."""
    numbers, out = np.asarray(numbers, np.int64), {}
    for salt, (key, field) in enumerate(
        (frame if isinstance(frame, dict) else {"": frame}).items()
    ):
        whole = numbers.reshape(*numbers.shape, *(1 for _ in field.shape)) * (salt + 1)
        spread = np.arange(int(np.prod(field.shape))).reshape(field.shape)
        out[f"frames/{key}" if key else "frames"] = np.where(whole, whole + spread, 0)
    return out


def given_frames(frame, numbers):
    """As `reset` and `step` take them."""
    by_path = {path: one.astype(np.int32) for path, one in frames_of(frame, numbers).items()}
    if isinstance(frame, dict):
        return {path.removeprefix("frames/"): one for path, one in by_path.items()}
    return by_path["frames"]


class Play:
    """A writer and its model, which are called alike; `call` makes each call of the writer."""

    def __init__(self, path, kind, lanes, *, capacity=None, **given):
        self.path, self.frame, self.lanes, self.capacity = path, FRAMES[kind], lanes, capacity
        self.model = Model(lanes or 1)
        self.call = lambda do: do()
        fields = {"frame": self.frame, "action": ACTION, "extras": EXTRAS}
        self.open(**fields, lanes=lanes, capacity=capacity, **given)

    def open(self, **given):
        self.writer = mmreplay.create(self.path, append=True, flush_s=0, **given)
        assert self.writer.rows == len(self.model.rows)

    def _frames(self):
        found = given_frames(self.frame, self.model.newest)
        if self.lanes is not None:
            return found
        return {key: one[0] for key, one in found.items()} if isinstance(found, dict) else found[0]

    def reset(self, which):
        self.model.reset(which)
        frames = self._frames()
        if self.lanes is None:
            self.call(lambda: self.writer.reset(frames))
            return
        mask = np.isin(np.arange(self.lanes), which)
        self.call(lambda: self.writer.reset(frames, mask=None if mask.all() else mask))

    def step(self, luck=None, terminated=(), truncated=()):
        """One step; by chance, or with which the episodes of some environments end."""
        t, n = len(self.model.rows), self.model.n
        running = np.array(self.model.running())
        terminated, truncated, lost = (
            np.isin(np.arange(n), one) for one in (terminated, truncated, ())
        )
        if luck is not None:
            terminated, truncated, lost = (
                np.array([luck.random() < chance for _ in range(n)]) for chance in (0.15, 0.1, 0.1)
            )
        terminated, truncated, lost = terminated & running, truncated & running, lost & running
        self.model.step(terminated, truncated, lost)
        actions = np.array([action_of(t, env) for env in range(n)], np.int32)
        rewards = np.array([reward_of(t, env) for env in range(n)], np.float32)
        x = np.array([[t + 1, -env - 1] for env in range(n)], np.int16)
        if self.lanes is None:
            values = actions[0], rewards[0], self._frames(), terminated[0], truncated[0]
            self.call(lambda: self.writer.step(*values, life_lost=bool(lost[0]), x=x[0]))
            return
        values = actions, rewards, self._frames(), terminated, truncated
        given = {"mask": None if running.all() else running, "x": x}
        given["life_lost"] = lost if lost.any() else None
        self.call(lambda: self.writer.step(*values, **given))

    def play(self, luck):
        """One call, of those that make sense now."""
        model, n = self.model, self.model.n
        idle = [env for env in range(n) if model.begins[env] is None]
        if len(idle) == n or luck.random() < (0.7 if idle else 0.04):
            some = idle if idle and luck.random() < 0.8 else list(range(n))
            self.reset(some if n == 1 else sorted(luck.sample(some, luck.randint(1, len(some)))))
        else:
            self.step(luck)
        assert self.writer.rows == len(model.rows)

    def flush(self):
        self.model.flush()
        self.call(self.writer.flush)

    def end(self, how, power_cut=None, *, check=True):
        if how == "close":
            self.model.close()
            self.call(self.writer.close)
            if check:
                self.check()
        elif how == "kill":
            faults.kill(self.writer)
            self.model.die()
        else:
            faults.kill(self.writer)
            self.model.lose_power()
            power_cut()

    def check(self):
        n_axis = self.lanes is not None
        check_checksums(self.path)
        self.model.check(self.path, self.frame, n_axis=n_axis, capacity=self.capacity)


def check_checksums(path):
    """Every chunk file of a closed lane has the checksum of its bytes."""
    for log in (path, path / "finals"):
        for document in (log / "checksums").rglob("zarr.json"):
            if json.loads(document.read_bytes())["node_type"] == "group":
                continue
            array = log / document.parent.relative_to(log / "checksums")
            stored = zarr.open_array(document.parent, mode="r")[:]
            found = {int(one.name.split(".")[1]): one for one in array.glob("c.*")}
            assert not any(stored[max(found, default=-1) + 1 :]), array
            for chunk, file in found.items():
                assert stored[chunk] == google_crc32c.value(file.read_bytes()), file
