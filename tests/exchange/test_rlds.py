"""RLDS episodes that TensorFlow Datasets itself wrote, and what it reads in them."""

import sys
import warnings

import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, SchemaError, import_dataset

LENGTHS = (7, 1, 12, 5)
TERMINATED = (True, False, False, True)


@pytest.fixture
def tfds(monkeypatch):
    """The library. Where another test has put plain files in TensorFlow's place, they are not."""
    found = sys.modules.get("tensorflow")
    if found is not None and not hasattr(found, "__version__"):
        monkeypatch.delitem(sys.modules, "tensorflow")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_datasets

        yield tensorflow_datasets


def step_features(tfds):
    features = tfds.features
    return {
        "observation": {
            "image": features.Image(shape=(16, 12, 3)),
            "photo": features.Image(shape=(16, 12, 3), encoding_format="jpeg"),
            "depth": features.Image(shape=(8, 6, 1)),
            "state": features.Tensor(shape=(4,), dtype=np.float32),
            "inner": {"matrix": features.Tensor(shape=(2, 3), dtype=np.int16)},
        },
        "action": features.Tensor(shape=(2,), dtype=np.float32),
        "reward": features.Scalar(dtype=np.float32),
        "discount": features.Scalar(dtype=np.float32),
        "is_first": np.bool_,
        "is_last": np.bool_,
        "is_terminal": np.bool_,
        "language": features.Text(),
        "packed": features.Tensor(shape=(5,), dtype=np.float64, encoding="zlib"),
        "large": features.Scalar(dtype=np.uint64),
        "kind": features.ClassLabel(num_classes=5),
    }


def steps_of(number, n):
    """n steps, and the one of the final observation."""
    random = np.random.default_rng(number)
    return [
        {
            "observation": {
                "image": random.integers(0, 256, (16, 12, 3), np.uint8),
                "photo": np.full((16, 12, 3), 10 * t, np.uint8),
                "depth": random.integers(0, 256, (8, 6, 1), np.uint8),
                "state": random.standard_normal(4).astype("f4"),
                "inner": {"matrix": random.integers(-9, 9, (2, 3)).astype("i2")},
            },
            "action": random.standard_normal(2).astype("f4"),
            "reward": float(t) / 2 if t < n else 0.0,
            "discount": float(t < n),
            "is_first": t == 0,
            "is_last": t == n,
            "is_terminal": t == n and TERMINATED[number],
            "language": "push it",
            "packed": random.standard_normal(5),
            "large": (1 << 63) + t,
            "kind": t % 5,
        }
        for t in range(n + 1)
    ]


@pytest.fixture
def make(tfds, tmp_path):
    """Makes a dataset, as `tfds build` does, and gives its builder."""

    def call(file_format="tfrecord", splits=("train",), shards=2, change=lambda step: step):
        base = tfds.core.GeneratorBasedBuilder

        class Toy(base, skip_registration=True):  # type: ignore[misc,valid-type]
            VERSION = tfds.core.Version("1.0.0")

            def _info(self):
                features = step_features(tfds)
                changed = change(features)
                about = {"file_path": tfds.features.Text(), "seed": np.int64, "goal": (2,)}
                about["goal"] = tfds.features.Tensor(shape=(2,), dtype=np.float32)
                return tfds.core.DatasetInfo(
                    builder=self,
                    features=tfds.features.FeaturesDict(
                        {"steps": tfds.features.Dataset(changed), "episode_metadata": about}
                    ),
                    disable_shuffling=True,
                )

            def _split_generators(self, dl_manager):
                return {name: self._generate_examples() for name in splits}

            def _generate_examples(self):
                for number, n in enumerate(LENGTHS):
                    steps = [change(one) for one in steps_of(number, n)]
                    goal = np.array([number, -number], "f4")
                    about = {"file_path": "x", "seed": number, "goal": goal}
                    yield number, {"steps": steps, "episode_metadata": about}

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            builder = Toy(data_dir=str(tmp_path / "in"), file_format=file_format)
            config = tfds.download.DownloadConfig(num_shards=shards)
            builder.download_and_prepare(download_config=config)
        return builder

    return call


def episodes_of(tfds, builder, split="train"):
    """Episodes as TensorFlow Datasets reads them: lists of steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD:
            episodes = builder.as_data_source(split=split)
        else:
            episodes = tfds.as_numpy(builder.as_dataset(split=split))
        for one in episodes:
            yield list(one["steps"]), one["episode_metadata"]


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
@pytest.mark.parametrize("block", [4, 1000])
def test_a_store_has_what_tensorflow_datasets_says(
    tmp_path, quick_disk, monkeypatch, tfds, make, file_format, block
):
    monkeypatch.setattr("mmreplay.exchange.columns.block_steps", lambda row_bytes: block)
    builder = make(file_format)
    made = import_dataset("rlds", tmp_path / "in" / "toy" / "1.0.0", tmp_path / "a.zarr")
    others = [one for one in made.losses if "of last steps" not in one.what]
    assert {one.what: one.count for one in others} == {
        "feature steps/language: encoded, or not numbers of one shape": 1,
        "feature steps/packed: encoded, or not numbers of one shape": 1,
    }
    assert (made.transitions, made.episodes, made.terminated, made.truncated) == (25, 4, 2, 2)
    n_rows = 0
    with mmreplay.open(tmp_path / "a.zarr") as store:
        for number, (steps, about) in enumerate(episodes_of(tfds, builder)):
            found = store.trajectory(number)
            n_rows += len(steps) - 1
            assert len(found.reward) == len(steps) - 1
            assert found.terminated == steps[-1]["is_terminal"]
            assert store.episodes["return"][number] == sum(one["reward"] for one in steps[:-1])
            for t, step in enumerate(steps):
                seen = step["observation"]
                for key in ("image", "photo", "depth", "state"):
                    assert np.array_equal(found.observation[key][t], seen[key]), key
                matrix = found.observation["inner.matrix"][t]
                assert np.array_equal(matrix, seen["inner"]["matrix"])
                if t == len(steps) - 1:
                    break
                assert np.array_equal(found.action[t], step["action"])
                assert found.reward[t] == step["reward"]
                for key in ("discount", "large", "kind"):
                    assert np.array_equal(found.extras[key][t], step[key]), key
                    assert found.extras[key].dtype == step[key].dtype, key
            assert found.episode["episode_metadata.seed"] == about["seed"]
            assert np.array_equal(found.episode["episode_metadata.goal"], about["goal"])
            assert found.episode["episode_metadata.file_path"] == about["file_path"].decode()
        assert n_rows == len(store) == builder.info.splits["train"].num_examples * 25 // 4
        assert store.info()["env"]["rlds"] == {"name": "toy", "version": "1.0.0"}


def test_one_observation_is_no_dict_and_splits_are_joined_or_chosen(tmp_path, quick_disk, make):
    def change(step):
        return step | {"observation": step["observation"]["state"]}

    make(splits=("train", "test"), shards=1, change=change)
    made = import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr")
    assert (made.transitions, made.episodes) == (50, 8)
    assert any(one.what == "splits: train, test are joined" for one in made.losses)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.trajectory(0).observation.shape == (8, 4)
    made = import_dataset("rlds", tmp_path / "in", tmp_path / "b.zarr", split="test")
    assert (made.transitions, made.episodes) == (25, 4)
    with pytest.raises(SchemaError, match="split: expected one of train, test, found 'all'"):
        import_dataset("rlds", tmp_path / "in", tmp_path / "c.zarr", split="all")


def test_actions_of_several_arrays(tmp_path, quick_disk, tfds, make):
    def change(step):
        return step | {"action": {"move": step["action"], "grip": step["reward"]}}

    builder = make(change=change)
    with pytest.raises(FormatError, match=r"one action; found .*action/move.* option `action`"):
        import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr")
    import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr", action="action/move")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        for number, (steps, _) in enumerate(episodes_of(tfds, builder)):
            found = store.trajectory(number)
            assert np.array_equal(found.action, [one["action"]["move"] for one in steps[:-1]])
            grips = [one["action"]["grip"] for one in steps[:-1]]
            assert found.extras["action.grip"].tolist() == grips


@pytest.mark.parametrize("final_observation", ["repeat", "drop"])
def test_last_steps_that_are_steps(tmp_path, quick_disk, tfds, make, final_observation):
    def change(step):
        return step if "is_first" in step and step["is_last"] is not True else rewarded(step)

    def rewarded(step):
        return step | {"reward": 1.0}

    builder = make(change=change)
    made = import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr")
    left_out = [one.count for one in made.losses if one.what.startswith("reward of last")]
    assert (made.transitions, left_out) == (25, [4])
    options = {"last_step": "step", "final_observation": final_observation}
    made = import_dataset("rlds", tmp_path / "in", tmp_path / "b.zarr", **options)
    is_kept = [final_observation == "repeat" or one for one in TERMINATED]
    assert made.transitions == 25 + sum(is_kept)
    with mmreplay.open(tmp_path / "b.zarr") as store:
        for number, (steps, _) in enumerate(episodes_of(tfds, builder)):
            found = store.trajectory(number)
            kept = steps if is_kept[number] else steps[:-1]
            assert found.reward.tolist() == [one["reward"] for one in kept]
            assert np.array_equal(found.action, [one["action"] for one in kept])
            assert found.terminated == steps[-1]["is_terminal"]
