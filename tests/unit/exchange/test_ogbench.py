"""OGBench's layout in; what its own loader makes of it is compared in tests/exchange."""

import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, import_dataset
from tests.support.played_episodes import observed


def write(path, lengths, **more):
    """Trajectories of so many steps, one row more each; the last one may break off."""
    n = sum(lengths) + len(lengths)
    ends = np.zeros(n, bool)
    ends[np.cumsum(np.array(lengths) + 1) - 1] = True
    rows = np.arange(n)
    np.savez(
        path,
        observations=rows[:, None].astype("f4"),
        actions=rows[:, None].astype("f4"),
        terminals=ends,
        qpos=rows[:, None] / 2,
        **more,
    )
    return path


@pytest.mark.parametrize("block", [1, 2, 5, 1000])
def test_a_trajectory_has_its_final_observation(tmp_path, quick_disk, monkeypatch, block):
    monkeypatch.setattr("mmreplay.exchange.columns.block_steps", lambda row_bytes: block)
    path = write(tmp_path / "a.npz", [4, 2, 5])
    made = import_dataset("ogbench", path, tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated) == (11, 0, 3)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert observed(store) == list(range(14))
        assert store.transitions(store.ids, stack=None).action[:, 0].tolist() == [
            *(0, 1, 2, 3, 5, 6, 8, 9, 10, 11, 12),
        ]
        assert not store.rewards[:].any()
        assert store.extras["qpos"][2].tolist() == [1.0]
    assert {one.what[:12]: one.count for one in made.losses} == {
        "rewards: the": 14,
        "column actio": 3,
        "column qpos ": 3,
    }


def test_a_file_without_ends_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", observations=np.ones((3, 1)), actions=np.ones((3, 1)))
    with pytest.raises(FormatError, match="expected a column 'terminals'"):
        import_dataset("ogbench", tmp_path / "a.npz", tmp_path / "a.zarr")


def test_rewards_are_used_if_there_are_any(tmp_path, quick_disk):
    path = write(tmp_path / "a.npz", [4, 2], rewards=np.arange(8.0))
    import_dataset("ogbench", path, tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        found = [store.trajectory(number).reward.tolist() for number in range(2)]
    assert found == [[0, 1, 2, 3], [5, 6]]
