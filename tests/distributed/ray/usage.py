"""What else a run does: single environments, errors in words, the ratio, the end, Ray Data."""

import os
import sys
import time
from pathlib import Path

import numpy as np

os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}

import ray

import mmreplay
from mmreplay import Field
from mmreplay.distributed import Run

FRAME = {"image": Field((8, 8), "uint8"), "state": Field((3,), "float32")}
ACTION, EXTRAS = Field((2,), "float32"), {"value": Field((), "float64")}
EPISODE = {"task": mmreplay.Text(8), "success": Field((), "int8")}


def expect(error, function, *arguments, match=""):
    try:
        function(*arguments)
    except error as found:
        assert match in str(found), found
    else:
        raise AssertionError(f"expected {error}")


@ray.remote(num_cpus=0)
def play(run, i, episodes):
    """Episodes of 5 steps; the observation after step t is t."""
    with run.writer(i) as writer:
        for number in range(episodes):
            writer.reset(observation(0), task=f"task{number}")
            for t in range(5):
                ends = t == 4
                action = np.full(2, i, "float32")
                writer.step(action, t, observation(t + 1), ends, value=float(number))
            writer.episode(success=1)
    return writer.rows


@ray.remote(num_cpus=0)
def refused(run):
    """The first of two writers of one lane."""
    first, second = run.writer(2), run.writer(2)
    first.reset(observation(0))
    first.step(np.zeros(2, "float32"), 0, observation(1), value=0.0)
    second.flush()
    expect(mmreplay.LockedError, first.flush, match="another sender")
    return True


def observation(t):
    return {"image": np.full((8, 8), t, "uint8"), "state": np.full(3, t, "float32")}


def main(folder):
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False)
    path, n = folder / "run.zarr", 400
    fields = {"frame": FRAME, "action": ACTION, "extras": EXTRAS, "episode": EPISODE}
    expect(mmreplay.SchemaError, lambda: Run(path, actors=0, **fields))
    expect(mmreplay.SchemaError, lambda: Run(path, actors=8, capacity=7, **fields))
    expect(mmreplay.SchemaError, lambda: Run(path, samples_per_insert=-1, **fields))
    expect(mmreplay.SchemaError, lambda: Run(path))
    with Run(path, actors=3, samples_per_insert=2.0, min_size=50, **fields) as run:
        expect(mmreplay.SchemaError, run.writer, 3, match="0 to 2")
        with run.buffer(prioritized=True):
            expect(mmreplay.LockedError, lambda: run.buffer(prioritized=True))
        with run.buffer(n_step=2) as data:
            assert data.limiter.samples_ahead(1)  # there is nothing yet
            tasks = [play.remote(run, i, n) for i in range(2)]
            limits, worst = data.limiter.limits, 0.0
            while data.limiter.inserts < 2 * 5 * n:
                batch = data.sample(64)
                assert batch.observation["image"].max() <= 4
                allowed = limits.ratio * (data.limiter.inserts - limits.min_size)
                worst = max(worst, data.limiter.samples - allowed)
            assert worst <= limits.margin
            assert ray.get(tasks, timeout=60) == [5 * n, 5 * n]
            assert len(data) == 2 * 5 * n
        assert ray.get(refused.remote(run), timeout=60)
    assert mmreplay.verify(path).state == "closed"
    with mmreplay.open(path) as store:
        episodes = store.episodes
        assert episodes["task"][:3].tolist() == ["task0", "task1", "task2"]
        assert (episodes["success"] == 1).all()
        assert (episodes["return"] == 10).all()
    began = time.time()
    with Run(path, actors=3, **fields) as run:  # continued, without limits
        assert ray.get(play.remote(run, 1, 2), timeout=60) == 5 * n + 10
    with mmreplay.open(path) as store:
        started = store.episodes["started"]
        assert (started[-2:] >= began * 1e9).all()
        assert len(store) == 2 * 5 * n + 10
    ray.shutdown()
    print("all is as it should be")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
