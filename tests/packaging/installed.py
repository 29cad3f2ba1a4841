# pyright: strict
"""A user's program, for an installed mmreplay: `make test-versions` runs it, and checks its types."""

import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
import zarr

import mmreplay

OWN_FRAME, OWN_ACTION = mmreplay.Field((8, 8), "uint8"), mmreplay.Field((), "int64")


def record_cartpole(path: Path) -> None:
    """Through the wrapper, into a buffer that is sampled meanwhile."""
    env = gymnasium.make("CartPole-v1")
    with mmreplay.ReplayBuffer(path, capacity=1_000, n_step=3, env=env) as buffer:
        wrapped = mmreplay.RecordExperience(env, buffer)
        wrapped.reset(seed=0)
        batch: mmreplay.Batch | None = None
        for _ in range(300):
            ended = wrapped.step(wrapped.action_space.sample())[2:4]
            if any(ended):
                wrapped.reset()
            if len(buffer) > 100:
                batch = buffer.sample(16, out=batch)
        assert batch is not None
        assert batch.reward.shape == batch.discount.shape == (16,)


def record_own_loop(path: Path) -> None:
    """Through the calls of a writer, with an extra and frames that are compressed."""
    extras = {"log_prob": mmreplay.Field((), "float32")}
    frames = np.arange(101, dtype=np.uint8)[:, None, None] * np.ones((8, 8), np.uint8)
    with mmreplay.create(path, OWN_FRAME, OWN_ACTION, extras=extras, codec="zstd") as writer:
        writer.reset(frames[0])
        for step in range(100):
            at_end = step == 99
            writer.step(step % 4, float(step), frames[step + 1], at_end, False, log_prob=-0.5)


def read(path: Path) -> None:
    """All the ways to draw from what `record_own_loop` wrote."""
    with mmreplay.load(path, stack=4, n_step=3, seed=0) as data:
        batch = data.sample(32)
        assert isinstance(batch.observation, np.ndarray)
        assert batch.observation.shape == (32, 4, 8, 8)
        assert (batch.action == batch.id % 4).all()
        assert sum(len(one.id) for one in data.batches(16, epochs=2)) == 200
        windows = data.sample_windows(8, {"observation": (-1, 0), "action": range(5)})
        assert windows["action"].shape == windows.mask["action"].shape == (8, 5)
        assert data.sample_sequences(4, 10, burn_in=2).reward.shape == (4, 12)
        assert data.sample_trajectories(1)[0].read().reward.sum() == 99 * 50
        assert len(data.select(ids=data.ids[:10])) == 10
        assert len(data.select(episodes=data.episodes["return"] > 0)) == 100
        assert data.statistics(["reward"])["reward"].mean == 49.5
    group = zarr.open_group(path, mode="r")  # pyright: ignore[reportUnknownMemberType] (zarr's)
    assert np.asarray(group["rewards"]).sum() == 99 * 50


def prioritize(path: Path) -> None:
    """What a learner does with priorities, and that a buffer resumes."""
    for n_before in (0, 50):
        with mmreplay.PrioritizedReplayBuffer(path, frame=OWN_FRAME, action=OWN_ACTION) as buffer:
            assert len(buffer) == n_before
            buffer.reset(np.zeros((8, 8), np.uint8))
            for step in range(50):
                buffer.step(step % 4, 1.0, np.full((8, 8), step, np.uint8))
            batch = buffer.sample(16)
            buffer.update_priorities(batch.id, np.abs(batch.reward) * batch.weight)


def run(*words: str) -> str:
    """What the command prints that was installed beside this interpreter."""
    command = [str(Path(sys.executable).parent / "mmreplay"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    """All of it, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        stores = [Path(folder) / f"{name}.zarr" for name in ("cartpole", "own", "prioritized")]
        record_cartpole(stores[0])
        record_own_loop(stores[1])
        read(stores[1])
        prioritize(stores[2])
        stores.append(Path(folder) / "recorded.zarr")
        recorded = str(stores[-1])
        assert "Recorded 200 steps" in run(
            "record", "CartPole-v1", recorded, "--steps=200", "--envs=2"
        )
        assert "200 in" in run("info", recorded)
        assert run("view", recorded, "--export", f"{folder}/page")
        for store in stores:
            assert mmreplay.verify(store).sound
            assert "sound" in run("verify", str(store))
    assert mmreplay.__file__.startswith(sys.prefix), mmreplay.__file__
    print(
        "passed: Python", sys.version.split()[0], "numpy", np.__version__, "zarr", zarr.__version__
    )


if __name__ == "__main__":
    main()
