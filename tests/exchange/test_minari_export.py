"""Stores as datasets of Minari: what is carried, what is said, and what is refused."""

import json

import h5py
import numpy as np
import pytest

import mmreplay
from mmreplay import Field, SchemaError, export_dataset, import_dataset
from tests.support.minari_dataset import put, write_minari
from tests.support.played_episodes import (
    assert_same,
    but_lives,
    play,
    read_back,
    write,
)


@pytest.fixture
def dataset(tmp_path):
    return write_minari(tmp_path / "set")


NAMES = ("logp", "info.logp", "reset_info.logp", "log.prob", "actions_")


def test_extra_columns_come_back_under_their_names(tmp_path, quick_disk):
    extras = dict(zip(NAMES, (Field((n,) * (n > 0), "float32") for n in range(5)), strict=True))
    episodes = play(action=Field((), "int64"), extras=extras)
    source = write(tmp_path / "a0.zarr", episodes)
    for number in range(2):
        out = tmp_path / f"out{number}"
        made = export_dataset(source, "minari", out)
        assert [(one.count, one.what) for one in made.losses if one.what.startswith("extra")] == [
            (4, f"extra column {name}: exported as an info, with 0 at the reset")
            for name in sorted(NAMES) * (number == 0)  # then the infos of resets are known: 0
        ]
        source = tmp_path / f"a{number + 1}.zarr"
        assert but_lives(import_dataset("minari", out, source).losses) == []
        assert_same(read_back(source), episodes)


def exported(folder, values, dtype="int64", metadata=None):
    """What an export of these actions loses, and its space of actions."""
    episodes = play((len(values),), action=Field((), dtype))
    episodes[0].action[:] = values
    store = write(folder / "a.zarr", episodes, metadata=metadata)
    losses = export_dataset(store, "minari", folder / "out").losses
    about = json.loads((folder / "out" / "data" / "metadata.json").read_text())
    return [one.what for one in losses], json.loads(about["action_space"])


@pytest.mark.parametrize(
    ("metadata", "values", "start", "n", "why"),
    [
        ({"n_actions": 2}, [0, 0], 0, 2, None),
        ({"n_actions": 3, "action_start": -1}, [0, 1], -1, 3, None),
        ({"n_actions": 3, "action_start": 2}, [4, 4], 2, 3, None),
        ({"n_actions": 2}, [1, 4], 0, 5, "the environment has 2, but others occur"),
        ({"n_actions": 2, "action_start": 5}, [4, 5], 4, 3, "the environment has 2, but others"),
        ({}, [0, 0], 0, 1, "not recorded in this store"),
        ({}, [2, 6], 0, 7, "not recorded in this store"),
        ({"n_actions": "2"}, [-5, -4], -5, 2, "not recorded in this store"),
    ],
)
def test_the_space_of_actions_is_that_of_the_environment_or_it_is_said(
    tmp_path, quick_disk, metadata, values, start, n, why
):
    losses, space = exported(tmp_path, values, metadata=metadata)
    assert space == {"type": "Discrete", "dtype": "int64", "start": start, "n": n}
    said = [one for one in losses if one.startswith("the number of actions")]
    assert len(said) == (why is not None)
    if said:
        assert said[0].startswith(f"the number of actions: {why}")
        assert said[0].endswith(f"exported as the actions that occur, n={n} from {start} on")


def test_bounds_that_nobody_knows_are_said(tmp_path, quick_disk):
    losses = export_dataset(write(tmp_path / "a.zarr", play()), "minari", tmp_path / "out").losses
    assert [one.what for one in losses if " bounds: " in one.what] == [
        f"{name} bounds: not recorded in this store; exported as the full range of the dtype"
        for name in ("observation", "action")
    ]


@pytest.mark.parametrize("name", ["", "x", "hello world", "a/b-v0", "/b-v0", "x-v0\n", "é.-v0"])
def test_an_id_that_minari_does_not_read_is_refused(tmp_path, quick_disk, name):
    store = write(tmp_path / "a.zarr", play())
    expected = r"dataset_id: expected \[NAMESPACE/\]NAME-vNUMBER .* as in dataset_id='cartpole/rand"
    with pytest.raises(SchemaError, match=expected):
        export_dataset(store, "minari", tmp_path / "out", dataset_id=name)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize(
    ("folder", "given", "expected"),
    [
        ("out", None, "mmreplay/out-v0"),
        ("a b.c-v1.zarr", None, "mmreplay/a-b-c-v1-v0"),
        ("é", None, "mmreplay/é-v0"),
        ("...", None, "mmreplay/dataset-v0"),
        ("out", "x-v0", "x-v0"),
        ("out", "D4RL/door/human-v12", "D4RL/door/human-v12"),
    ],
)
def test_the_id_of_an_export(tmp_path, quick_disk, folder, given, expected):
    store = write(tmp_path / "a.zarr", play())
    options = {} if given is None else {"dataset_id": given}
    export_dataset(store, "minari", tmp_path / folder, **options)
    about = json.loads((tmp_path / folder / "data" / "metadata.json").read_text())
    assert about["dataset_id"] == expected


SEEDS = {
    "of 63 bits, and one is missing": ([2**63 - 1, None], "int64", [2**63 - 1, -1]),
    "of 64 bits, and small ones": ([42, 2**63], "uint64", [42, 2**63]),
    "of 64 bits alone": ([2**63, 2**64 - 2], "uint64", [2**63, 2**64 - 2]),
    "of 64 bits, and one is missing": ([None, 2**63], "uint64", [2**64 - 1, 2**63]),
    "negative": ([-5, 3], "int64", [-5, 3]),
}


def attributes(dataset, name):
    """These attributes, and their dtypes."""
    with h5py.File(dataset / "data" / "main_data.hdf5") as file:
        values = [file[f"episode_{number}"].attrs.get(name) for number in range(2)]
    return [None if one is None else (one.tolist(), np.asarray(one).dtype) for one in values]


@pytest.mark.parametrize("kind", SEEDS)
def test_seeds_there_and_back(dataset, tmp_path, quick_disk, kind):
    seeds, dtype, stored = SEEDS[kind]
    put(dataset, "seed", seeds)
    made = import_dataset("minari", dataset, tmp_path / "a.zarr")
    assert made.losses == ()
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.schema.episode["seed"] == Field((), dtype)
        assert [store.trajectory(number).episode["seed"] for number in range(2)] == [*stored]
    export_dataset(tmp_path / "a.zarr", "minari", tmp_path / "out")
    assert attributes(tmp_path / "out", "seed") == attributes(dataset, "seed")
