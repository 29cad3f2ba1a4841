"""Episodes in plain lists, and stores of every kind that hold them: what an exchange has to carry.

Invariant: an episode here is what was given to a writer, and is compared byte for byte.
"""

import dataclasses

import numpy as np

import mmreplay
from mmreplay import Field

Frames = dict[str, np.ndarray]


@dataclasses.dataclass
class Episode:
    """T steps: T + 1 observations by key, T of all else; `lost` are steps with which a life was."""

    observation: Frames
    action: np.ndarray
    reward: np.ndarray
    lost: np.ndarray
    extras: Frames
    terminated: bool

    @property
    def terminal(self):
        """Whether returns stop with a step."""
        last = np.arange(len(self.reward)) == len(self.reward) - 1
        return np.where(last, self.terminated, self.lost)


FRAMES = {"frame": Field((3,), "float32")}
DICT = {"image": Field((4, 5), "uint8"), "pose": Field((2,), "float64")}
ACTION = Field((2,), "float32")
ARGUMENTS = {
    key: Field((3,), "float32")
    for key in ("action", "actions", "reward", "rewards", "terminated", "truncated", "pose")
}
"""Keys of observations that formats have columns of, and `step` arguments."""

EXTRAS = {"log_prob": Field((), "float32"), "goal": Field((2, 2), "int16")}


def play(lengths=(7, 1, 12, 5), frames=FRAMES, action=ACTION, extras=EXTRAS, seed=0, *, lives=True):
    """Episodes of random values, every second of them terminated."""
    random = np.random.default_rng(seed)

    def rows(field, n):
        if field.dtype.kind == "f":
            return random.standard_normal((n, *field.shape)).astype(field.dtype)
        return random.integers(0, 100, (n, *field.shape)).astype(field.dtype)

    return [
        Episode(
            {key: rows(one, n + 1) for key, one in frames.items()},
            rows(action, n),
            random.standard_normal(n),
            (random.random(n) < 0.2) & lives,
            {key: rows(one, n) for key, one in extras.items()},
            number % 2 == 0,
        )
        for number, n in enumerate(lengths)
    ]


def fields(episodes):
    """The arguments of `create` for such episodes."""
    first = episodes[0]

    def of(rows):
        return Field(rows.shape[1:], rows.dtype)

    frames = {key: of(rows) for key, rows in first.observation.items()}
    return {
        "frame": frames["frame"] if list(frames) == ["frame"] else frames,
        "action": of(first.action),
        "extras": {key: of(rows) for key, rows in first.extras.items()},
        "reward_dtype": first.reward.dtype,
        "flush_s": 0,
    }


def _frame(rows, at):
    return rows["frame"][at] if list(rows) == ["frame"] else {k: v[at] for k, v in rows.items()}


def write(path, episodes, **settings):
    """A closed store of one environment that has played them."""
    with mmreplay.create(path, **(fields(episodes) | settings)) as writer:
        for one in episodes:
            writer.reset(_frame(one.observation, 0))
            for t in range(len(one.reward)):
                last = t == len(one.reward) - 1
                writer.step(
                    one.action[t],
                    one.reward[t],
                    _frame(one.observation, t + 1),
                    last and one.terminated,
                    last and not one.terminated,
                    life_lost=bool(one.lost[t]) and not last,
                    **{key: rows[t] for key, rows in one.extras.items()},
                )
    return path


def write_vector(path, episodes, **settings):
    """A closed store of as many environments as there are episodes, one each."""
    n = len(episodes)
    with mmreplay.create(path, lanes=n, **(fields(episodes) | settings)) as writer:
        first = [_frame(one.observation, 0) for one in episodes]
        writer.reset(_stacked(first))
        for t in range(max(len(one.reward) for one in episodes)):
            mask = np.array([t < len(one.reward) for one in episodes])
            at = [min(t, len(one.reward) - 1) for one in episodes]
            last = np.array([t == len(one.reward) - 1 for one in episodes])
            ends = np.array([one.terminated for one in episodes])
            pairs = list(zip(episodes, at, strict=True))
            writer.step(
                np.stack([one.action[i] for one, i in pairs]),
                np.array([one.reward[i] for one, i in pairs]),
                _stacked([_frame(one.observation, i + 1) for one, i in pairs]),
                last & ends,
                last & ~ends,
                life_lost=np.array([bool(one.lost[i]) for one, i in pairs]) & ~last & mask,
                mask=mask,
                **{
                    key: np.stack([one.extras[key][i] for one, i in pairs])
                    for key in episodes[0].extras
                },
            )
    return path


def _stacked(rows):
    if isinstance(rows[0], dict):
        return {key: np.stack([one[key] for one in rows]) for key in rows[0]}
    return np.stack(rows)


def observed(store):
    """The first number of each observation, the last ones of episodes included."""
    every = (store.trajectory(number).observation for number in range(len(store.episodes)))
    return [one for rows in every for one in np.asarray(rows)[:, 0].tolist()]


def but_lives(losses):
    """Losses without the lost lives, which formats mark as terminal steps."""
    return [one for one in losses if "lost lives" not in one.what]


def read_back(path):
    """The episodes of a store, as its trajectories have them."""
    out = []
    with mmreplay.open(path) as store:
        for number, about in enumerate(store.episodes):
            one = store.trajectory(number)
            frames = one.observation
            lost = ~one.non_terminal
            lost[-1] = False
            out.append(
                Episode(
                    frames if isinstance(frames, dict) else {"frame": frames},
                    one.action,
                    one.reward,
                    lost,
                    one.extras,
                    bool(about["terminated"]),
                )
            )
            assert about["terminated"] != about["truncated"]
    return out


def assert_same(found, expected):
    """Every value of every step, and how each episode ended."""
    assert [len(one.reward) for one in found] == [len(one.reward) for one in expected]
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert a.terminated == b.terminated, number
        assert a.terminal.tolist() == b.terminal.tolist(), number
        assert a.observation.keys() == b.observation.keys()
        assert a.extras.keys() == b.extras.keys()
        pairs = [(a.action, b.action), (a.reward, b.reward)]
        pairs += [(a.observation[key], b.observation[key]) for key in b.observation]
        pairs += [(a.extras[key], b.extras[key]) for key in b.extras]
        for one, other in pairs:
            assert (one.dtype, one.shape) == (other.dtype, other.shape), number
            assert one.tobytes() == other.tobytes(), number


def steps_of(episodes):
    """Steps of all of them."""
    return sum(len(one.reward) for one in episodes)
