"""DQN Replay; files of Dopamine's own code are read in tests/exchange."""

import gzip
import pickle
import re

import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, import_dataset


def save(folder, name, rows, number=0):
    folder.mkdir(exist_ok=True)
    with gzip.open(folder / f"{name}_ckpt.{number}.gz", "wb") as file:
        np.save(file, rows, allow_pickle=False)


def save_rows(folder, frames, terminal, count=None, number=0):
    """A checkpoint of these rows; action and reward are what the frame is."""
    frames = np.array(frames)
    save(
        folder,
        "$store$_observation",
        np.broadcast_to(frames[:, None, None].astype("u1"), (len(frames), 2, 2)),
        number,
    )
    save(folder, "$store$_action", frames.astype("i4"), number)
    save(folder, "$store$_reward", frames.astype("f4"), number)
    save(folder, "$store$_terminal", np.array(terminal, "u1"), number)
    save(folder, "add_count", np.array(len(frames) if count is None else count), number)


def found(path):
    """(first to last frame, terminated) of each episode."""
    with mmreplay.open(path) as store:
        return [
            (store.trajectory(n).reward.astype(int).tolist(), bool(about["terminated"]))
            for n, about in enumerate(store.episodes)
        ]


@pytest.mark.parametrize("name", ["log.prob", "a_ckpt.0.gz"])
def test_extra_columns_of_any_name_come_in(tmp_path, quick_disk, name):
    save_rows(tmp_path / "in", [1, 2, 3], [0, 0, 1])
    save(tmp_path / "in", f"$store$_{name}", np.arange(6, dtype="f4").reshape(3, 2))
    import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.trajectory(0).extras[name].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_padding_is_dropped_and_tells_where_episodes_were_cut_off(tmp_path, quick_disk):
    pad = [0, 0, 0]
    frames = [*pad, 1, 2, 3, *pad, 0, 5, *pad, 6, 0, 0, 7, *pad, 8, 9]
    terminal = [frame == 3 for frame in frames]
    save_rows(tmp_path / "in", frames, terminal)
    made = import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    # After an end a fourth row of zeros is a step; two rows of zeros are steps anywhere.
    assert found(tmp_path / "a.zarr") == [
        ([1, 2, 3], True),
        ([0, 5], False),
        ([6, 0, 0, 7], False),
        ([8, 9], False),
    ]
    counts = {one.what[:9]: one.count for one in made.losses}
    assert counts == {"ends of t": 2, "an unfini": 1, "final obs": 4}


@pytest.mark.parametrize("block", [1, 2, 3, 5, 1000])
def test_blocks_cut_no_padding_apart(tmp_path, quick_disk, monkeypatch, block):
    monkeypatch.setattr("mmreplay.exchange.dqn_replay.block_steps", lambda row_bytes: block)
    frames = [0, 0, 0, 1, 2, 0, 0, 0, 3, 4, 0, 0, 0, 5, 0, 0, 0]
    save_rows(tmp_path / "in", frames, [frame in (2, 5) for frame in frames])
    import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    assert found(tmp_path / "a.zarr") == [([1, 2], True), ([3, 4], False), ([5], True)]


@pytest.mark.parametrize("stack", [1, 2])
def test_the_padding_is_as_long_as_the_stack_says(tmp_path, quick_disk, stack):
    save_rows(tmp_path / "in", [0, 1, 0, 2], [0, 1, 0, 0])
    import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr", stack=stack)
    assert (
        found(tmp_path / "a.zarr")
        == {
            1: [([0, 1], True), ([0, 2], False)],
            2: [([1], True), ([2], False)],
        }[stack]
    )


def test_a_full_buffer_begins_at_its_cursor(tmp_path, quick_disk):
    save_rows(tmp_path / "in", [9, 10, 5, 6, 7, 8], [False] * 6, count=14)
    import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    assert found(tmp_path / "a.zarr") == [([5, 6, 7, 8, 9, 10], False)]


def test_checkpoints_of_one_buffer_are_read_once(tmp_path, quick_disk):
    save_rows(tmp_path / "in", [1, 2, 3, 4], [False] * 4, count=4, number=2)
    save_rows(tmp_path / "in", [5, 6, 3, 4], [False] * 4, count=6, number=10)
    import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    assert found(tmp_path / "a.zarr") == [([1, 2, 3, 4, 5, 6], False)]


class Trap:
    """Unpickled, it says so."""

    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def test_the_pickle_beside_them_is_not_opened(tmp_path, quick_disk):
    save_rows(tmp_path / "in", [1, 2], [False] * 2)
    (tmp_path / "in" / "episode_end_indices_ckpt.0.gz").write_bytes(
        gzip.compress(pickle.dumps(Trap()))
    )
    made = import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    assert any("not read: episode_end_indices" in one.what for one in made.losses)
    with gzip.open(tmp_path / "in" / "$store$_reward_ckpt.0.gz", "wb") as file:
        np.save(file, np.array([Trap(), Trap()], object), allow_pickle=True)
    with pytest.raises(FormatError, match="a pickle of Python objects"):
        import_dataset("dqn_replay", tmp_path / "in", tmp_path / "b.zarr")


def test_files_that_are_missing_or_cut_off_are_refused(tmp_path, quick_disk):
    (tmp_path / "in").mkdir()
    with pytest.raises(FormatError, match=r"expected files as \$store\$_observation_ckpt.0.gz"):
        import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    save_rows(tmp_path / "in", np.arange(1, 200), [False] * 199)
    path = tmp_path / "in" / "$store$_reward_ckpt.0.gz"
    data = path.read_bytes()
    path.write_bytes(data[:-20])
    with pytest.raises(
        FormatError, match=r"reward_ckpt.0.gz: damaged, or cut off: Compressed file"
    ):
        import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
    path.unlink()
    with pytest.raises(FormatError, match="checkpoint 0 has no reward"):
        import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")


FILES = [f"$store$_{name}" for name in ("observation", "action", "reward", "terminal")]


@pytest.mark.parametrize("count", [6, 14])
@pytest.mark.parametrize("name", [*FILES, "add_count"])
def test_each_file_is_read_to_its_checksum(tmp_path, quick_disk, name, count):
    save_rows(tmp_path / "in", [9, 10, 5, 6, 7, 8], [False] * 6, count=count)
    path = tmp_path / "in" / f"{name}_ckpt.0.gz"
    data = path.read_bytes()
    more = gzip.compress(gzip.decompress(data) + b"\0")
    wrong = data[:-8] + bytes([data[-8] ^ 1]) + data[-7:]
    for given, why in (
        (wrong, "damaged, or cut off: CRC check failed"),
        (data[:-4] + bytes(4), "damaged, or cut off: Incorrect length"),
        (data[:-8], "damaged, or cut off: Compressed file ended"),
        (data[:-1], "damaged, or cut off: Compressed file ended"),
        (data + b"garbage", "damaged, or cut off: Not a gzipped file"),
        (data + data, "continues after its . rows"),
        (more, "continues after its . rows"),
        (b"no gzip", "damaged, or cut off: Not a gzipped file"),
    ):
        path.write_bytes(given)
        with pytest.raises(FormatError, match=re.escape(f"{name}_ckpt.0.gz: ") + why):
            import_dataset("dqn_replay", tmp_path / "in", tmp_path / "a.zarr")
        assert [one.name for one in tmp_path.iterdir()] == ["in"]
