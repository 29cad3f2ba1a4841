"""How the golden stores of format 1 were made. They are kept for ever: run this for a new format.

    python tests/conformance/golden/make_golden.py

It refuses to touch what is there. Frames are real ones of Breakout; what they must read as is
worked out by the model of `tests.support`, never by the code that wrote them. Each store is an
archive, as most of its bytes are zeros.
"""

import contextlib
import hashlib
import json
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing

import mmreplay
from tests.support.disks import faults
from tests.support.oracle.layout import Layout
from tests.support.quiet import quiet

HERE = Path(__file__).parent
FORMAT = "format-1"
SETTINGS = (
    {"stack": 4, "n_step": 1, "gamma": 0.99, "padding": "reset", "stack_axis": 0},
    {"stack": 4, "n_step": 3, "gamma": 0.9, "padding": "zero", "stack_axis": -1},
    {"stack": None, "n_step": 5, "gamma": 1.0, "padding": "reset", "stack_axis": 0},
    {"stack": 65, "n_step": 1, "gamma": 0.5, "padding": "reset", "stack_axis": 0},
)
Field = mmreplay.Field
SCREEN, ACTION = (42, 42), Field((), "int64", chunk=64)
SMALL = {
    "packed": Field((5,), "float32", "lz4", chunk=2, shard=8),
    "raw": Field((3,), "int16", "raw", chunk=8),
}
LAYOUTS = {
    "raw": Layout(Field(SCREEN, "uint8", "raw", chunk=32), ACTION),
    "lz4": Layout(Field(SCREEN, "uint8", "lz4", chunk=8, shard=32), ACTION),
    "zstd-evicted": Layout(
        Field(SCREEN, "uint8", "zstd", chunk=4, shard=16),
        Field((), "int64", chunk=16),
        capacity=60,
        padding="zero",
    ),
    "three-environments": Layout(
        Field(SCREEN, "uint8", "lz4", chunk=4, shard=16),
        Field((), "int64", chunk=16),
        {"lives": Field((), "uint8", chunk=16)},
        capacity=200,
        environments=3,
    ),
    "dict-of-everything": Layout(
        {
            "screen": Field(SCREEN, "uint8", "lz4", chunk=8, shard=16),
            "color.rgb": Field((7, 6, 3), "uint8", "zstd", chunk=4, shard=16),
            "ram": Field((128,), "uint8", "raw", chunk=16),
            "position": Field(
                (2,), "float32", {"name": "gzip", "configuration": {"level": 6}}, 4, 16
            ),
        },
        Field((2,), "float32", chunk=32),
        {"log_prob": Field((), "float32", chunk=32), "lives": Field((), "uint8", chunk=32)},
        "float64",
    ),
    "several-lanes": Layout(SMALL, Field((), "int64", chunk=16), environments=2, lanes=2),
    "priorities": Layout(SMALL, Field((), "int64", chunk=16), environments=2),
    # Copied while it was written, as a snapshot of a file system is: it has what was flushed.
    "live": Layout(SMALL, Field((), "int64", chunk=16), capacity=80, environments=3),
    "crashed": Layout(SMALL, Field((), "int64", chunk=16), capacity=80),
}
N_STEPS = 130


class Game:
    """Endless Breakout of one environment, as a layout shows it."""

    def __init__(self, layout, seed):
        gymnasium.register_envs(ale_py)
        env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
        self.env, self.seed = AtariPreprocessing(env, noop_max=5), seed
        self.layout, self.random = layout, np.random.default_rng(seed)
        self.n_steps, self.over, self.lives = 0, True, 5

    def reset(self):
        self.lives, self.over = 5, False
        return self.observe(self.env.reset(seed=self.seed + self.n_steps)[0])

    def step(self):
        """Action, reward, frame, flags and extras."""
        choice = int(self.random.integers(4))
        screen, reward, terminated, _, info = self.env.step(choice)
        cut, lost = self.n_steps % 41 == 40, info["lives"] < self.lives
        self.lives, self.over = info["lives"], terminated or cut
        action = self.random.random(2).astype("f4") if self.layout.action.shape else choice
        values = {"log_prob": np.float32(-0.1 * self.n_steps), "lives": np.uint8(self.lives)}
        self.n_steps += 1
        flags = {"terminated": terminated, "truncated": cut, "life_lost": lost}
        extras = {name: values[name] for name in self.layout.extras}
        return action, float(reward) + 0.5, self.observe(screen), flags, extras

    def observe(self, screen):
        """What the layout shows of a screen of 84 x 84."""
        if not isinstance(self.layout.frame, dict):
            return screen[::2, ::2]
        if "screen" not in self.layout.frame:
            return {
                "packed": self.random.random(5).astype(np.float32),
                "raw": self.random.integers(-9, 9, 3).astype(np.int16),
            }
        return {
            "screen": screen[::2, ::2],
            "color.rgb": np.stack([screen[30:37, 40:46]] * 3, axis=-1)
            + np.arange(3, dtype=np.uint8),
            "ram": self.env.unwrapped.ale.getRAM().copy(),
            "position": self.random.random(2).astype(np.float32),
        }


def fill(writer, layout, model, seed, n_steps=N_STEPS):
    """Play so many steps; where an episode ends, the environment is left out of the next step."""
    n = layout.environments
    games = [Game(layout, seed + env) for env in range(n or 1)]
    for number in range(n_steps):
        begin = [env for env, game in enumerate(games) if game.over]
        late = begin if number and len(begin) < len(games) else []
        for env in [] if late else begin:
            reset(writer, model, n, {env: games[env].reset()})
        given = {env: game.step() for env, game in enumerate(games) if not game.over}
        if n is None:
            action, reward, frame, flags, extras = given[0]
            writer.step(action, reward, frame, **flags, **extras)
        else:
            columns = [
                together([given[e][at] if e in given else None for e in range(n)])
                for at in range(5)
            ]
            actions, rewards, frames, flags, extras = columns
            mask = np.isin(np.arange(n), list(given))
            writer.step(actions, rewards, frames, **flags, **extras, mask=mask)
        model.step(given)
        for env in late:
            reset(writer, model, n, {env: games[env].reset()})
    for game in games:
        game.env.close()


def reset(writer, model, n, frames):
    if n is None:
        writer.reset(frames[0])
    else:
        mask = np.isin(np.arange(n), list(frames))
        writer.reset(together([frames.get(env) for env in range(n)]), mask)
    model.reset(frames)


def together(values):
    """One array of a value for each environment, zeros where there is none; also of dicts."""
    known = next(one for one in values if one is not None)
    if isinstance(known, dict):
        return {key: together([None if v is None else v[key] for v in values]) for key in known}
    return np.stack([np.zeros_like(known) if one is None else np.asarray(one) for one in values])


def digest(array):
    """dtype, shape and sha256 of an array, or of a dict of them."""
    if isinstance(array, dict):
        return {name: digest(one) for name, one in array.items()}
    array = np.ascontiguousarray(array)
    shape = "x".join(map(str, array.shape))
    return f"{array.dtype} {shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def batch_digest(batch):
    """Of every field of a batch."""
    names = "observation next_observation action reward discount non_terminal id weight extras"
    names += " terminated truncated"
    return {name: digest(getattr(batch, name)) for name in names.split()}


def lane_expectation(lane):
    """What the columns of a lane must hold, zeros below the base."""
    arrays = {path: one for path, one in lane.arrays().items() if not path.startswith("finals/")}
    for one in arrays.values():
        one[: lane.base] = 0
    return {
        "rows": len(lane.rows),
        "base": lane.base,
        "rewards": arrays["rewards"].tolist(),
        "columns": {path: digest(one) for path, one in arrays.items()},
    }


def expectation(model, priorities):
    """What a reader must find, as JSON."""
    ids = model.ids()
    return {
        "lanes": [lane_expectation(lane) for lane in model.lanes],
        "ids": ids.tolist(),
        "episodes": [
            [model.ids_of(lane, one)[0], len(one.steps), one.total, *one.ending]
            for lane, one in model.episodes()
        ],
        "batches": [
            {"settings": one, "fields": batch_digest(model.batch(ids, **one))} for one in SETTINGS
        ],
        "priorities": priorities,
    }


def prioritize(path):
    """Give every other transition a priority; returns those of all."""
    with mmreplay.PrioritizedReplayBuffer(path, flush_s=0, epsilon=0.0) as buffer:
        ids = buffer.ids
        buffer.update_priorities(ids[::2], (ids[::2] % 7 + 1) / 4)
        return buffer.priorities(ids).tolist()


def anonymous(member):
    """A file of an archive, of nobody and of no time."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def make(folder: Path, scratch: Path):
    """Make every golden store of this format, and what it must read as."""
    folder.mkdir()
    expected = {}
    for name, layout in LAYOUTS.items():
        path, target, model = scratch / f"{name}.zarr", scratch / "copy.zarr", layout.model()
        writers = layout.create_lanes(path, metadata={"id": "ALE/Breakout-v5", "policy": "random"})
        for number, (writer, lane) in enumerate(zip(writers, model.lanes, strict=True)):
            fill(writer, layout, lane, 10 * number)
            if name in ("live", "crashed"):
                writer.flush()
                fill(writer, layout, lane, 99, 3)  # which nobody will find
            if name == "crashed":
                faults.kill(writer)
            elif name != "live":
                writer.close()
        with quiet(writers[0]) if name == "live" else contextlib.nullcontext():
            # A copy, as a clone of the repository is: nobody trusts its state page.
            shutil.copytree(path, target)
        if name in ("live", "crashed"):
            faults.kill(writers[0]) if name == "live" else None
            (target / ".live" / "writer").unlink()  # says on which machine it was made
        priorities = prioritize(target) if name == "priorities" else None
        with mmreplay.open(target) as store:
            model.cut([view.rows for view in store.lanes])
            for view, lane in zip(store.lanes, model.lanes, strict=True):
                lane.forget(view.base)
        expected[name] = expectation(model, priorities)
        with tarfile.open(folder / f"{name}.tar.xz", "w:xz") as archive:
            archive.add(target, f"{name}.zarr", filter=anonymous)
        shutil.rmtree(target)
    text = json.dumps(expected, indent=1)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = HERE / FORMAT
    if target.exists():
        sys.exit(f"{target} is there, and is kept for ever")
    with tempfile.TemporaryDirectory() as made:
        make(target, Path(made))
