"""How the golden stores of format 1 were made. They are kept for ever: run this for a new format.

    python tests/conformance/golden/make_golden.py

It refuses to touch what is there. Frames are real ones of Breakout; what they must read as is
worked out by the model of `tests.support`, never by the code that wrote them.
"""

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
from tests.support.oracle.model import Model

HERE = Path(__file__).parent
FORMAT = "format-1"
SETTINGS = (
    {"stack": 4, "n_step": 1, "gamma": 0.99, "padding": "reset", "stack_axis": 0},
    {"stack": 4, "n_step": 3, "gamma": 0.9, "padding": "zero", "stack_axis": -1},
    {"stack": None, "n_step": 5, "gamma": 1.0, "padding": "reset", "stack_axis": 0},
    {"stack": 65, "n_step": 1, "gamma": 0.5, "padding": "reset", "stack_axis": 0},
)
Field = mmreplay.Field
ARCHIVED = ("crashed-many-lanes",)  # many files, most of them zeros
LAYOUTS = {
    "breakout-lz4": Layout(
        Field((84, 84), "uint8", "lz4", chunk=8, shard=32), Field((), "int64", chunk=64), {}
    ),
    "breakout-zstd-many-lanes-evicted": Layout(
        Field((84, 84), "uint8", "zstd", chunk=4, shard=16),
        Field((), "int64", chunk=16),
        {},
        capacity=60,
        lanes=2,
        padding="zero",
    ),
    "dict-of-everything": Layout(
        {
            "screen": Field((42, 42), "uint8", "lz4", chunk=8, shard=16),
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
    "crashed-vectors": Layout(
        {
            "packed": Field((5,), "float32", "lz4", chunk=2, shard=8),
            "raw": Field((3,), "int16", "raw", chunk=8),
        },
        Field((), "int64", chunk=16),
        {},
        capacity=30,
    ),
    # Made later, by the last version whose `create(lanes=N)` made a lane for each environment.
    "crashed-many-lanes": Layout(
        {
            "packed": Field((5,), "float32", "lz4", chunk=2, shard=8),
            "raw": Field((3,), "int16", "raw", chunk=8),
        },
        Field((), "int64", chunk=16),
        {"lives": Field((), "uint8", chunk=16)},
        capacity=90,
        lanes=3,
    ),
}


def plays(n_lanes):
    """Endless (frame, action, reward, terminated, lost, lives, ram) of Breakout, by lane."""
    gymnasium.register_envs(ale_py)
    out = []
    for lane in range(n_lanes):
        env = gymnasium.make("ALE/Breakout-v5", frameskip=1)
        env = AtariPreprocessing(env, noop_max=5)
        out.append((env, np.random.default_rng(lane), lane))
    return out


def observe(layout, env, frame, random):
    """What a row of this layout shows of a screen of 84 x 84."""
    if not isinstance(layout.frame, dict):
        return frame
    if "screen" in layout.frame:
        return {
            "screen": frame[::2, ::2],
            "color.rgb": np.stack([frame[30:37, 40:46]] * 3, axis=-1)
            + np.arange(3, dtype=np.uint8),
            "ram": env.unwrapped.ale.getRAM().copy(),
            "position": random.random(2).astype(np.float32),
        }
    return {
        "packed": random.random(5).astype(np.float32),
        "raw": random.integers(-9, 9, 3).astype(np.int16),
    }


def fill(writer, layout, model, n_steps):
    """Play until every lane has that many steps; longer episodes are cut."""
    lanes = writer.writers if hasattr(writer, "writers") else (writer,)
    for number, (env, random, seed) in enumerate(plays(len(lanes))):
        lane, rows = lanes[number], model.lanes[number]
        lives, over, frame = 5, True, None
        for step in range(n_steps):
            if over:
                screen, _ = env.reset(seed=seed + step)
                frame = observe(layout, env, screen, random)
                lane.reset(frame)
                rows.reset(frame)
                lives = 5
            choice = int(random.integers(4))
            screen, reward, terminated, _, info = env.step(choice)
            frame = observe(layout, env, screen, random)
            cut = step % 41 == 40
            lost = info["lives"] < lives
            lives = info["lives"]
            action = choice
            if layout.action.shape:
                action = random.random(2).astype(np.float32)
            values = {"log_prob": -0.1 * step, "lives": lives}
            extras = {name: values[name] for name in layout.extras}
            flags = {"terminated": terminated, "truncated": cut, "life_lost": lost}
            lane.step(action, float(reward) + 0.5, frame, **flags, **extras)
            rows.step(action, float(reward) + 0.5, frame, **flags, **extras)
            over = terminated or cut
        env.close()


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
    return {name: digest(getattr(batch, name)) for name in names.split()}


def expectation(model: Model, live):
    """What a reader must find, as JSON."""
    ids = model.ids()
    schema = model.schema
    paths = [*schema.columns(), "non_terminals", "resets"]
    return {
        "lanes": [
            {
                "rows": len(lane.rows),
                "base": lane.base,
                "rewards": lane.column("rewards").tolist(),
                "resets": lane.column("resets").tolist(),
                "columns": {path: digest(lane.column(path)) for path in paths},
            }
            for lane in model.lanes
        ],
        "ids": ids.tolist(),
        "episodes": [
            [one.id, one.length, one.total, one.terminated, one.truncated]
            for one in model.episodes(live)
        ],
        "batches": [
            {"settings": one, "fields": batch_digest(model.batch(ids, **one))} for one in SETTINGS
        ],
    }


def make(folder: Path, scratch: Path):
    """Make every golden store of this format, and what it must read as."""
    folder.mkdir()
    expected = {}
    for name, layout in LAYOUTS.items():
        path, model = scratch / f"{name}.zarr", layout.model()
        crashed = name.startswith("crashed")
        metadata = {"id": "ALE/Breakout-v5", "policy": "random"}
        writer = layout.create(path, metadata=metadata)
        fill(writer, layout, model, 130)
        if crashed:
            writer.flush()
            lanes = getattr(writer, "writers", (writer,))
            frame = {"packed": np.ones(5, np.float32), "raw": np.ones(3, np.int16)}
            # Of many lanes one: the kill came in the middle of a step.
            lanes[len(lanes) // 2].step(1, 9.0, frame, **dict.fromkeys(layout.extras, 1))
            faults.kill(writer)
            for lane in lanes:
                (lane.path / ".live" / "writer").unlink()  # says on which machine it was made
        else:
            writer.close()
        # A copy, as a clone of the repository is: nobody trusts its state page.
        shutil.copytree(path, folder / path.name)
        with mmreplay.open(folder / path.name) as store:
            for view, lane in zip(store.lanes, model.lanes, strict=True):
                lane.cut(view.rows)
                lane.forget(view.base)
        expected[name] = expectation(model, live=False)
        if name in ARCHIVED:
            with tarfile.open(folder / f"{path.name}.tar.xz", "w:xz") as archive:
                archive.add(folder / path.name, path.name)
            shutil.rmtree(folder / path.name)
    text = json.dumps(expected, indent=1)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = HERE / FORMAT
    if target.exists():
        sys.exit(f"{target} is there, and is kept for ever")
    with tempfile.TemporaryDirectory() as made:
        make(target, Path(made))
