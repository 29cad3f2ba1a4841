"""RLDS as documented, of records made here; those of TensorFlow Datasets are in tests/exchange."""

import json
import struct

import google_crc32c
import numpy as np
import pytest

import mmreplay
from mmreplay import FormatError, import_dataset
from mmreplay.exchange.rlds import _message
from tests.support.disks.trees import names


def tensor(dtype, *shape, encoding="none"):
    dimensions = {"dimensions": [str(n) for n in shape]} if shape else {}
    return {"tensor": {"dtype": dtype, "encoding": encoding, "shape": dimensions}}


FEATURES = {
    "observation": tensor("float32", 3),
    "action": tensor("int64"),
    "reward": tensor("float32"),
    "is_terminal": tensor("bool"),
    "is_first": tensor("bool"),
    "is_last": tensor("bool"),
}


def masked(data):
    found = google_crc32c.value(data)
    return (((found >> 15) | (found << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record(columns):
    example = _message()()
    for name, rows in columns.items():
        one = example.features.feature[name]
        if isinstance(rows, list):
            one.bytes_list.value.extend(rows)
        elif rows.dtype.kind == "f":
            one.float_list.value.extend(rows.ravel().tolist())
        else:
            one.int64_list.value.extend(rows.ravel().astype("i8").tolist())
    data = example.SerializeToString()
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked(head)) + data + struct.pack("<I", masked(data))


def episode(n, terminated, **more):
    random = np.random.default_rng(n)
    last = np.arange(n + 1) == n
    columns = {
        "observation": random.standard_normal((n + 1, 3)).astype("f4"),
        "action": np.arange(n + 1),
        "reward": np.where(last, 0, np.arange(n + 1)).astype("f4"),
        "is_terminal": last & terminated,
    } | more
    return {f"steps/{name}": rows for name, rows in columns.items()}


def make(folder, episodes, features=FEATURES, **info):
    folder.mkdir()
    inside = {"steps": {"sequence": {"feature": {"featuresDict": {"features": features}}}}}
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": inside}}))
    split = {"name": "train", "shardLengths": [str(len(episodes))]}
    about = {"name": "toy", "splits": [split], "fileFormat": "tfrecord"} | info
    (folder / "dataset_info.json").write_text(json.dumps(about))
    path = folder / "toy-train.tfrecord-00000-of-00001"
    path.write_bytes(b"".join(record(one) for one in episodes))
    return folder


def test_the_last_step_is_the_final_observation(tmp_path, quick_disk):
    episodes = [episode(4, True), episode(2, False), episode(0, True)]
    make(tmp_path / "in", episodes)
    made = import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr")
    assert (made.transitions, made.terminated, made.truncated) == (6, 1, 1)
    assert [(one.what[:24], one.count) for one in made.losses] == [
        ("action of last steps: no", 2),
        ("episodes without a step", 1),
    ]
    with mmreplay.open(tmp_path / "a.zarr") as store:
        for number, one in enumerate(episodes[:2]):
            found = store.trajectory(number)
            assert np.array_equal(found.observation, one["steps/observation"])
            assert np.array_equal(found.action, one["steps/action"][:-1])


def test_lists_and_numbers_that_numpy_does_not_have_are_said(tmp_path, quick_disk):
    more = {
        "list": {"sequence": {"feature": tensor("int64"), "length": "2"}},
        "any": tensor("float32", -1),
        "half": tensor("bfloat16"),
        "text": tensor("string"),
        "wide": {"image": {"dtype": "uint16", "shape": {"dimensions": ["4", "4", "1"]}}},
        "inner": {"featuresDict": {"features": {"say": {"text": {}}}}},
    }
    make(tmp_path / "in", [episode(4, True)], FEATURES | more)
    made = import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr")
    lost = [one.what for one in made.losses if "of last steps" not in one.what]
    lost = [one.removesuffix(": encoded, or not numbers of one shape") for one in lost]
    names_ = ("any", "half", "inner/say", "list", "text", "wide")
    assert sorted(lost) == [f"feature steps/{name}" for name in names_]


def test_without_rewards_and_flags_it_is_said(tmp_path, quick_disk):
    features = {name: FEATURES[name] for name in ("observation", "action")}
    make(tmp_path / "in", [episode(4, True)], features)
    made = import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr")
    assert (made.terminated, made.truncated) == (0, 1)
    assert [one.what.partition(":")[0] for one in made.losses][:2] == ["is_terminal", "rewards"]
    assert "feature steps/reward: not in features.json, left out" in [o.what for o in made.losses]


@pytest.mark.parametrize(
    ("features", "columns", "message"),
    [
        (
            {"observation": tensor("float32", 4)},
            {},
            "expected rows of shape .4,., found 15 numbers",
        ),
        ({"more": tensor("int64")}, {}, "has no feature 'steps/more', which features.json"),
        ({}, {"action": np.arange(4)}, "lists of different lengths: .*'steps/action': 4, "),
        ({}, {"action": [b""] * 5}, "steps/action: expected numbers, found bytes"),
        (
            {"action": tensor("int64", encoding="bytes")},
            {},
            "expected a feature 'action' that is an array",
        ),
        (
            {"is_terminal": tensor("float32")},
            {"is_terminal": np.array([0, 0, 0, 0, 2], "f4")},
            "is_terminal: expected flags, each 0 or 1, found 2.0",
        ),
        ({"action": {"text": {}}}, {}, "expected a feature 'action' that is an array"),
        ({"observation": {"text": {}}}, {}, "expected steps with an observation"),
    ],
)
def test_what_is_not_as_it_says_leaves_nothing_behind(
    tmp_path, quick_disk, features, columns, message
):
    make(tmp_path / "in", [episode(4, True, **columns)], FEATURES | features)
    with pytest.raises(FormatError, match=message):
        import_dataset("rlds", tmp_path / "in", tmp_path / "a.zarr")
    assert names(tmp_path) == ["in"]


def test_a_folder_with_none_or_several_is_refused(tmp_path):
    with pytest.raises(FormatError, match=r"expected one features.json, found 0"):
        import_dataset("rlds", tmp_path, tmp_path / "a.zarr")
    for name in ("one", "two"):
        make(tmp_path / name, [episode(4, True)])
    with pytest.raises(FormatError, match="found 2: choose one of one, two"):
        import_dataset("rlds", tmp_path, tmp_path / "a.zarr")
