"""LeRobot both ways, with datasets that LeRobot itself wrote and reads."""

import json
import os
import shutil
import warnings

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import mmreplay
from mmreplay import Field, FormatError, SchemaError, export_dataset, import_dataset
from tests.support.played_episodes import (
    DICT,
    assert_same,
    play,
    read_back,
    write,
    write_vector,
)

os.environ["HF_HUB_OFFLINE"] = "1"
# Torchvision's compiled operators are for the torch with CUDA. It says what they give when it is
# imported, for which they must have a signature; nothing here calls them.
OPERATORS = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import datasets
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

# Its own: histograms of flags, and what is deprecated in the libraries that it uses.
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:Converting input from bool"
)

LENGTHS = (7, 2, 12, 5)
VECTOR = {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]}
IMAGE = {"dtype": "image", "shape": (16, 12, 3), "names": ["height", "width", "channels"]}
VIDEO = {"dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"]}
ACTION = {"dtype": "float32", "shape": (2,), "names": None}
REWARD = {"dtype": "float32", "shape": (1,), "names": None}
FLAG = {"dtype": "bool", "shape": (1,), "names": None}
STEP = {"action": ACTION, "next.reward": REWARD, "next.done": FLAG}
OWN = {"timestamp", "frame_index", "episode_index", "index", "task_index", "task"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where Hugging Face keeps a copy of what it reads."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    av.logging.set_level(av.logging.ERROR)


def value(random, about, number, t, n):
    if about["dtype"] == "video":
        # Flat and slowly changing: what a codec of videos hardly changes.
        return np.full(about["shape"], 20 + 15 * t + 3 * number, np.uint8)
    if about["dtype"] == "image":
        return random.integers(0, 256, about["shape"], np.uint8)
    if about["dtype"] == "bool":
        return np.array([t == n - 1])
    if about["dtype"] == "string":
        return "text"
    if about["dtype"].startswith("float"):
        return random.standard_normal(about["shape"]).astype(about["dtype"])
    return random.integers(0, 100, about["shape"]).astype(about["dtype"])


def make(path, features, lengths=LENGTHS):
    """A dataset as LeRobot writes it, and its episodes as they were given."""
    random, episodes = np.random.default_rng(3), []
    made = LeRobotDataset.create("a/b", fps=10, features=features, root=path, vcodec="h264")
    for number, n in enumerate(lengths):
        episode = [
            {name: value(random, one, number, t, n) for name, one in features.items()}
            for t in range(n)
        ]
        for frame in episode:
            made.add_frame(frame | {"task": f"task {number % 2}"})
        made.save_episode()
        episodes.append(episode)
    made.finalize()
    return episodes


def opened(path):
    return LeRobotDataset("a/b", root=path)


def pixels(image):
    """Of an image as LeRobot gives it, from 0 to 1 and channels first."""
    return (image.numpy().transpose(1, 2, 0) * 255).round().astype(np.uint8)


def test_a_store_has_what_lerobot_says(tmp_path, quick_disk, monkeypatch):
    monkeypatch.setattr("mmreplay.exchange.lerobot.block_steps", lambda row_bytes: 4)
    more = {
        "matrix": {"dtype": "int16", "shape": (2, 3), "names": None},
        "speed": {"dtype": "float32", "shape": (1,), "names": None},
        "next.success": FLAG,
        "say": {"dtype": "string", "shape": (1,), "names": None},
    }
    features = {"observation.state": VECTOR, "observation.images.top": IMAGE, **STEP, **more}
    make(tmp_path / "in", features)
    there = opened(tmp_path / "in")
    made = import_dataset("lerobot", tmp_path / "in", tmp_path / "a.zarr")
    assert (made.transitions, made.episodes) == (there.num_frames, there.num_episodes) == (26, 4)
    assert (made.terminated, made.truncated) == (4, 0)
    assert {one.what.split(":")[0]: one.count for one in made.losses} == {
        "feature say": 26,
        "files that are not read": 2,
        "ends marked as done": 4,
        "final observations that the source does not have": 4,
    }
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.episodes["length"].tolist() == list(LENGTHS)
        at = 0
        for number, n in enumerate(LENGTHS):
            found = store.trajectory(number)
            items = [there[at + t] for t in range(n)]
            at += n
            for t, item in enumerate(items):
                assert found.action[t].tolist() == item["action"].tolist()
                assert found.reward[t] == item["next.reward"]
                assert found.observation["state"][t].tolist() == item["observation.state"].tolist()
                image = pixels(item["observation.images.top"])
                assert np.array_equal(found.observation["images.top"][t], image)
                for name in ("matrix", "speed", "timestamp", "task_index", "next.success"):
                    assert found.extras[name][t].tolist() == item[name].tolist()
            total = sum(item["next.reward"].item() for item in items)
            assert store.episodes["return"][number] == pytest.approx(total, rel=1e-6)
        assert store.info()["env"]["lerobot"]["tasks"] == ["task 0", "task 1"]


def test_there_and_back_it_is_the_same_dataset(tmp_path, quick_disk):
    features = {"observation.state": VECTOR, "observation.image": IMAGE, **STEP}
    make(tmp_path / "in", features)
    import_dataset("lerobot", tmp_path / "in", tmp_path / "a.zarr")
    out = export_dataset(tmp_path / "a.zarr", "lerobot", tmp_path / "out")
    assert [one.what for one in out.losses] == ["final observations: LeRobot has none"]
    found, expected = opened(tmp_path / "out"), opened(tmp_path / "in")
    assert (found.fps, found.num_frames, found.num_episodes) == (10, 26, 4)
    assert found.meta.tasks.equals(expected.meta.tasks)
    for name, one in expected.features.items():
        assert found.features[name] == one, name
    assert found.features.keys() - expected.features.keys() == {"next.terminated"}
    for one, other in zip(found, expected, strict=True):
        for name in other:
            same = other[name] == one[name]
            assert same.all() if isinstance(same, torch.Tensor) else same, name
    for name in ("episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"):
        assert found.meta.episodes[name] == expected.meta.episodes[name], name
    # Of images LeRobot looks at a sample only.
    for name in ("observation.state", "action", "next.reward", "timestamp", "episode_index"):
        a, b = found.meta.stats[name], expected.meta.stats[name]
        assert a.keys() == b.keys()
        for part in ("min", "max", "mean", "std", "count"):
            assert a[part] == pytest.approx(b[part], rel=1e-5), (name, part)
            assert a[part].shape == b[part].shape
        for part in ("q01", "q10", "q50", "q90", "q99"):
            spread = b["max"] - b["min"]
            assert (np.abs(a[part] - b[part]) <= 0.25 * spread).all(), (name, part)
    a, b = (one.meta.stats["observation.image"] for one in (found, expected))
    for part in b:
        assert a[part].shape == b[part].shape
        if part != "std":  # LeRobot 0.4.4 squares bytes, which overflow
            assert a[part] == pytest.approx(b[part], abs=0.02 if part != "count" else 0)
    frames = np.stack([pixels(one["observation.image"]) for one in expected])
    assert a["std"].ravel() == pytest.approx((frames / 255).std((0, 1, 2)), rel=1e-6)
    assert a["q10"].ravel() == pytest.approx(np.quantile(frames / 255, 0.1, (0, 1, 2)), abs=0.02)


def test_videos_are_decoded_frame_by_frame(tmp_path, quick_disk, monkeypatch):
    monkeypatch.setattr("mmreplay.exchange.lerobot.block_steps", lambda row_bytes: 4)
    features = {"observation.images.top": VIDEO, "observation.state": VECTOR, **STEP}
    make(tmp_path / "in", features)
    import_dataset("lerobot", tmp_path / "in", tmp_path / "a.zarr")
    path = tmp_path / "in/videos/observation.images.top/chunk-000/file-000.mp4"
    with av.open(str(path)) as file:
        frames = [one.to_ndarray(format="rgb24") for one in file.decode(video=0)]
    assert len(frames) == sum(LENGTHS)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        at = 0
        for number, n in enumerate(LENGTHS):
            found = store.trajectory(number).observation["images.top"]
            assert np.array_equal(found[:-1], frames[at : at + n])
            assert np.abs(found[:-1, 5, 5, 0] - (20 + 15 * np.arange(n) + 3 * number)).max() <= 3
            at += n
    # What comes out again has them as they were decoded.
    export_dataset(tmp_path / "a.zarr", "lerobot", tmp_path / "out")
    items = opened(tmp_path / "out")
    for number in (0, 8, 25):
        assert np.array_equal(pixels(items[number]["observation.images.top"]), frames[number])


def test_an_episode_may_span_files(tmp_path, quick_disk):
    make(tmp_path / "in", {"observation.state": VECTOR, **STEP})
    path = tmp_path / "in/data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    for number, start in enumerate((0, 10, 20)):  # of which 10 lies within the third episode
        pq.write_table(table.slice(start, 10), path.with_name(f"file-{number:03d}.parquet"))
    import_dataset("lerobot", tmp_path / "in", tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.episodes["length"].tolist() == list(LENGTHS)
        found = store.transitions(store.ids, stack=None).reward
        assert found.tolist() == table["next.reward"].to_pylist()


SHAPES = {
    "vector": ({"frame": Field((3,), "float32")}, Field((), "int64")),
    "number": ({"frame": Field((), "float64")}, Field((2, 2), "float32")),
    "gray": ({"frame": Field((16, 12), "uint8")}, Field((), "int64")),
    "one channel": ({"frame": Field((16, 12, 1), "uint8")}, Field((1,), "float32")),
    "colours": ({"frame": Field((16, 12, 3), "uint8")}, Field((2,), "float32")),
    "channels first": ({"frame": Field((4, 8, 8), "uint8")}, Field((3,), "int32")),
    "dict": (DICT, Field((2,), "float32")),
}


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("play_into", [write, write_vector])
def test_a_store_of_our_own(tmp_path, quick_disk, monkeypatch, kind, play_into):
    monkeypatch.setattr("mmreplay.maintenance.episode_runs.block_steps", lambda row_bytes: 4)
    monkeypatch.setattr("mmreplay.exchange.lerobot_files._GROUP_BYTES", 500)
    monkeypatch.setattr("mmreplay.exchange.lerobot_files._EPISODES_PER_GROUP", 2)
    frames, action = SHAPES[kind]
    extras = {"log_prob": Field((), "float32"), "flags": Field((2,), "bool")}
    episodes = play(frames=frames, action=action, extras=extras)
    store = play_into(tmp_path / "a.zarr", episodes)
    made = export_dataset(store, "lerobot", tmp_path / "out", fps=5, task="stand")
    assert (made.transitions, made.episodes) == (25, 4)
    there = opened(tmp_path / "out")
    assert (there.num_frames, there.num_episodes, there.fps) == (25, 4, 5)
    places = {there.meta.get_data_file_path(number) for number in range(4)}
    files = {
        one.relative_to(tmp_path / "out") for one in (tmp_path / "out/data").rglob("*.parquet")
    }
    assert places == files
    at = 0
    for number, one in enumerate(episodes):
        for t in range(len(one.reward)):
            item = there[at]
            at += 1
            assert item["task"] == "stand"
            assert item["episode_index"] == number
            assert item["timestamp"].item() == pytest.approx(t / 5)
            assert item["next.reward"] == one.reward[t]
            assert item["next.terminated"] == one.terminal[t]
            assert item["next.done"] == (t == len(one.reward) - 1)
            assert np.array_equal(item["action"].numpy().ravel(), one.action[t].ravel())
            assert np.array_equal(item["flags"].numpy(), one.extras["flags"][t])
            if kind in {"gray", "one channel", "colours"}:
                image = pixels(item["observation.image"])
                assert np.array_equal(image.ravel(), one.observation["frame"][t].ravel())
            elif kind != "dict":
                frame = one.observation["frame"][t]
                if frame.dtype == "float64":  # LeRobot gives it as float32
                    frame = frame.astype("float32")
                assert np.array_equal(item["observation.state"], frame)
    # And back: all but the final observations, for which the last ones stand.
    back = import_dataset("lerobot", tmp_path / "out", tmp_path / "b.zarr")
    assert (back.terminated, back.truncated) == (2, 2)
    for one in episodes:
        for rows in one.observation.values():
            rows[-1] = rows[-2]
    again = read_back(tmp_path / "b.zarr")
    for one in again:
        assert set(one.extras) == {*extras, "timestamp", "task_index"}
        one.extras = {name: one.extras[name] for name in extras}
    assert_same(again, episodes)


@pytest.mark.parametrize("name", ["observation", "observation.x", "next.truncated"])
def test_extra_columns_with_a_name_that_means_something_else_are_lost(tmp_path, quick_disk, name):
    episodes = play(extras={name: Field((), "bool")})
    out = export_dataset(write(tmp_path / "a.zarr", episodes), "lerobot", tmp_path / "out")
    assert {one.what: one.count for one in out.losses} == {
        f"column {name}: this name has a meaning in LeRobot": 25,
        "times when episodes began: LeRobot has none": 4,
        "final observations: LeRobot has none": 4,
    }
    back = import_dataset("lerobot", tmp_path / "out", tmp_path / "b.zarr")
    assert (back.episodes, back.terminated) == (4, 2)
    for found, one in zip(read_back(tmp_path / "b.zarr"), episodes, strict=True):
        assert np.array_equal(found.observation["frame"][:-1], one.observation["frame"][:-1])


@pytest.fixture
def small(tmp_path):
    make(tmp_path / "in", {"observation.image": IMAGE, **STEP})
    return tmp_path / "in"


def change(folder, **changed):
    path = folder / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


def test_an_older_version_is_refused_with_what_to_do(tmp_path, small):
    change(small, codebase_version="v2.1")
    with pytest.raises(
        FormatError, match=r"found 'v2.1'; convert an older one with .*convert_dataset_v21"
    ):
        import_dataset("lerobot", small, tmp_path / "a.zarr")
    change(small, codebase_version="v3.0", storage_format="lance")
    with pytest.raises(FormatError, match="expected storage_format 'parquet', found 'lance'"):
        import_dataset("lerobot", small, tmp_path / "a.zarr")


def test_what_was_not_finalized_or_is_no_dataset_is_refused(tmp_path, small):
    path = small / "data/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match="cannot be read as lerobot"):
        import_dataset("lerobot", small, tmp_path / "a.zarr")
    shutil.rmtree(small / "data")
    with pytest.raises(FormatError, match=r"expected .parquet files, found none"):
        import_dataset("lerobot", small, tmp_path / "a.zarr")
    (small / "meta/info.json").write_text("[]")
    with pytest.raises(FormatError, match="cannot be read as lerobot"):
        import_dataset("lerobot", small, tmp_path / "a.zarr")
    shutil.rmtree(small / "meta")
    with pytest.raises(FormatError, match="cannot be read as lerobot"):
        import_dataset("lerobot", small, tmp_path / "a.zarr")


def test_a_task_that_there_is_not_is_refused(tmp_path, quick_disk):
    make(tmp_path / "in", {"observation.state": VECTOR, **STEP})
    path = tmp_path / "in/meta/tasks.parquet"
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    import_dataset("lerobot", tmp_path / "in", tmp_path / "a.zarr")
    with pytest.raises(SchemaError, match="task_index: expected numbers below 1"):
        export_dataset(tmp_path / "a.zarr", "lerobot", tmp_path / "out")
    export_dataset(tmp_path / "a.zarr", "lerobot", tmp_path / "out", task="other")
    assert opened(tmp_path / "out")[0]["task"] == "other"
