"""Stores as Datasets of Ray Data, and back."""

import os
import sys
from pathlib import Path

import numpy as np

os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}

import ray

import mmreplay
from mmreplay import Field
from mmreplay.distributed import read, write

FRAME = {"image": Field((40, 40), "uint8"), "state": Field((3,), "float32")}
FIELDS = {
    "frame": FRAME,
    "action": Field((2,), "float32"),
    "extras": {"value": Field((), "float64")},
    "episode": {"task": mmreplay.Text(8), "success": Field((), "int8")},
}


def record(path):
    """Lanes of one environment and of three, with episodes of many lengths."""
    random = np.random.default_rng(0)
    for name, n in (("one", None), ("three", 3)):
        with mmreplay.create(path, lane=name, lanes=n, flush_s=0, **FIELDS) as writer:
            lead = (n,) if n else ()

            def observation(lead=lead):
                return {
                    "image": random.integers(0, 255, (*lead, 40, 40), "uint8"),
                    "state": random.random((*lead, 3), "float32"),
                }

            writer.reset(observation(), task=["a", "b", "c"] if n else "a")
            for t in range(100):
                ends = random.random(lead) < 0.2
                lost = random.random(lead) < 0.1
                cut = ~np.asarray(ends) & (random.random(lead) < 0.05)
                given = random.random((*lead, 2), "float32"), np.full(lead, t)
                more = {"life_lost": lost, "value": np.full(lead, t / 2)}
                writer.step(*given, observation(), ends, cut, **more)
                if np.any(ends | cut):
                    mask = (ends | cut,) if n else ()
                    task = [f"t{t}"] * n if n else f"t{t}"
                    writer.reset(observation(), *mask, task=task, success=np.full(lead, 1))


def same(one, other):
    assert one.dtype == other.dtype, (one.dtype, other.dtype)
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


def check_transitions(path, **settings):
    """Each transition once, in blocks of whole chunks, as `transitions` gives it."""
    dataset = read(path, block_rows=30, **settings)
    found, seen = [], 0
    with mmreplay.load(path, **settings) as data:
        for batch in dataset.iter_batches(batch_size=None):
            ids = batch["id"]
            expected = data.transitions(ids)
            same(batch["observation.image"], expected.observation["image"])
            same(batch["next_observation.state"], expected.next_observation["state"])
            same(batch["action"], expected.action)
            same(batch["reward"], expected.reward)
            same(batch["non_terminal"], expected.non_terminal)
            same(batch["discount"], expected.discount)
            same(batch["extras.value"], expected.extras["value"])
            found += ids.tolist()
            seen += 1
        assert sorted(found) == data.ids.tolist()
    # 32 rows a block: four of the first lane, and four of each environment of the other one.
    assert dataset.materialize().num_blocks() == 16, dataset.num_blocks()
    assert read(path, **settings).map_batches(lambda x: {"n": [len(x["id"])]}).sum("n") == 400


def check_episodes(path, copy):
    """Each episode once; written again, they are the same."""
    dataset = read(path, episodes=True, block_rows=32)
    write(dataset, copy, flush_s=0, **FIELDS)
    assert mmreplay.verify(copy).findings == []
    with mmreplay.open(path) as store, mmreplay.open(copy) as written:
        assert len(written.lanes) > 1
        assert dataset.count() == len(store.episodes) == len(written.episodes)
        key = lambda one: one.observation["image"].tobytes()  # noqa: E731
        pairs = zip(
            sorted(map(store.trajectory, range(len(store.episodes))), key=key),
            sorted(map(written.trajectory, range(len(store.episodes))), key=key),
            strict=True,
        )
        for one, other in pairs:
            for name in ("image", "state"):
                same(one.observation[name], other.observation[name])
            for name in ("action", "reward", "non_terminal"):
                same(getattr(one, name), getattr(other, name))
            same(one.extras["value"], other.extras["value"])
            assert (one.terminated, one.truncated) == (other.terminated, other.truncated)
            for name in ("task", "success"):
                assert one.episode[name] == other.episode[name]


def expect(error, function, match):
    try:
        function()
    except Exception as found:
        assert error in f"{type(found).__name__} {found}", found
        assert match in str(found), found
    else:
        raise AssertionError(f"expected {error}")


def main(folder):
    ray.init(num_cpus=2, object_store_memory=80 << 20, include_dashboard=False)
    path = folder / "store.zarr"
    record(path)
    check_transitions(path, stack=None)
    check_transitions(path, stack=2, n_step=3)
    check_episodes(path, folder / "copy.zarr")
    expect("StoreExists", lambda: write(read(path, episodes=True), path, **FIELDS), "already")
    few = read(path, episodes=True).drop_columns(["action"])
    expect("SchemaError", lambda: write(few, folder / "few.zarr", **FIELDS), "expected the columns")
    print("all is as it should be")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
