"""Which steps of a live store an export takes."""

import numpy as np

from mmreplay import Field, create, export_dataset


def test_a_running_episode_is_truncated_and_the_rest_of_an_evicted_one_left_out(
    tmp_path, quick_disk
):
    settings = {"capacity": 5, "frame": Field((1,), chunk=8), "action": Field((), "int64", chunk=8)}
    with create(tmp_path / "s.zarr", flush_s=0, **settings) as writer:
        frame = np.zeros(1, np.uint8)
        for n in (100, 3):
            writer.reset(frame)
            for t in range(n):
                writer.step(t, 1.0, frame, n == 100 and t == 99)
        writer.flush()
        made = export_dataset(tmp_path / "s.zarr", "arrays", tmp_path / "out.npz")
    assert {one.what: one.count for one in made.losses} == {
        "episodes that are still running: exported as truncated": 1,
        "steps of episodes whose beginning was evicted: left out": 2,
    }
    with np.load(tmp_path / "out.npz") as found:
        assert found["actions"].tolist() == [0, 1, 2]
        assert found["truncations"].tolist() == [False, False, True]
