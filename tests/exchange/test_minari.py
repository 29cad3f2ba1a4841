"""Minari both ways, with datasets that Minari itself wrote and reads."""

import shutil
import warnings

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

import mmreplay
from mmreplay import (
    Field,
    FormatError,
    SchemaError,
    StoreExistsError,
    StoreNotFoundError,
    export_dataset,
    import_dataset,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import minari
    from minari.data_collector import EpisodeBuffer
    from minari.utils import create_dataset_from_buffers

from tests.support.played_episodes import (
    ARGUMENTS,
    DICT,
    assert_same,
    but_lives,
    play,
    read_back,
    write,
    write_vector,
)

LENGTHS = (7, 1, 12, 5)


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    """Minari's own folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def values(space, random, n):
    space.seed(int(random.integers(1 << 30)))
    if isinstance(space, spaces.Dict):
        return {key: values(one, random, n) for key, one in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(values(one, random, n) for one in space.spaces)
    if isinstance(space, spaces.Text):
        return [space.sample() for _ in range(n)]
    return np.stack([space.sample() for _ in range(n)])


def make(
    name,
    observation_space,
    action_space,
    data_format="hdf5",
    infos=True,
    seeds=(100, 101, None, 103),
    reset=0,
    **settings,
):
    """A dataset as Minari writes it: episodes of both ends, seeds, infos."""
    random = np.random.default_rng(3)
    buffers = []
    for number, n in enumerate(LENGTHS):
        terminations, truncations = np.zeros(n, bool), np.zeros(n, bool)
        terminations[-1] = number in (0, 3)
        truncations[-1] = number in (1, 2)
        given: dict = {
            "speed": random.standard_normal((n + 1, 3)),
            "count": random.integers(0, 9, (n + 1, 1)),
        }
        given["speed"][0] = given["count"][0] = reset
        if infos == "nested":
            given = {"inner": given, "mass of it": np.ones((n + 1, 2, 2))}
            given["mass of it"][0] = 0
        buffers.append(
            EpisodeBuffer(
                id=number,
                seed=seeds[number],
                options={"level": number, "inner": {"x": 0.5 * number}},
                observations=values(observation_space, random, n + 1),
                actions=values(action_space, random, n),
                rewards=list(random.standard_normal(n)),
                terminations=list(terminations),
                truncations=list(truncations),
                infos=given if infos else None,
            )
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_dataset_from_buffers(
            name,
            buffers,
            observation_space=observation_space,
            action_space=action_space,
            data_format=data_format,
            algorithm_name="random",
            author={"A", "B"},
            author_email={"a@b.c"},
            code_permalink="https://example.org",
            description="a test",
            **settings,
        )


def flat(tree, path=""):
    if isinstance(tree, dict):
        return {k: v for key, one in tree.items() for k, v in flat(one, f"{path}/{key}").items()}
    if isinstance(tree, tuple):
        return flat({str(number): one for number, one in enumerate(tree)}, path)
    return {path: np.asarray(tree)}


def assert_equal(found, expected):
    """All of two datasets, as Minari reads them."""
    assert (found.total_steps, found.total_episodes) == (
        expected.total_steps,
        expected.total_episodes,
    )
    assert found.observation_space == expected.observation_space
    assert found.action_space == expected.action_space
    assert found.env_spec == expected.env_spec
    assert found.id == expected.id
    names = ("author", "author_email", "algorithm_name", "code_permalink", "description")
    for name in (*names, "minari_version"):
        assert found.storage.metadata[name] == expected.storage.metadata[name], name
    for one, other in zip(found.iterate_episodes(), expected.iterate_episodes(), strict=True):
        assert one.id == other.id
        for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
            a, b = flat(getattr(one, name)), flat(getattr(other, name))
            assert a.keys() == b.keys(), name
            for key in a:
                assert (a[key].dtype, a[key].shape) == (b[key].dtype, b[key].shape), (name, key)
                assert a[key].tobytes() == b[key].tobytes(), (name, key)
    numbers = range(expected.total_episodes)
    for one, other in zip(
        found.storage.get_episode_metadata(numbers),
        expected.storage.get_episode_metadata(numbers),
        strict=True,
    ):
        assert one == other


BOX = spaces.Box(-1, 1, (3,), np.float64)
TREE = spaces.Dict(
    {
        "pose": spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        "parts": spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(3))),
        "image": spaces.Box(0, 255, (40, 36, 3), np.uint8),
    }
)
SPACES = {
    "box": (BOX, spaces.Box(-1, np.array([1, 2], np.float32), (2,), np.float32)),
    "discrete": (spaces.Discrete(5), spaces.Discrete(7, start=-2)),
    "tree": (TREE, spaces.MultiDiscrete([3, 4])),
}


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("kind", SPACES)
def test_there_and_back_it_is_the_same_dataset(tmp_path, quick_disk, kind, data_format):
    infos = "nested" if (kind, data_format) == ("box", "hdf5") else True
    made = make("test/there-v0", *SPACES[kind], data_format, infos, jpeg_encoding=False)
    source = tmp_path / "minari" / "test" / "there-v0"
    back = import_dataset("minari", source, tmp_path / "a.zarr")
    assert (back.transitions, back.episodes) == (made.total_steps, made.total_episodes)
    assert (back.terminated, back.truncated) == (2, 2)
    renamed = ["column infos/mass of it: called info.mass_of_it in the store"]
    assert [one.what for one in back.losses] == (renamed if infos == "nested" else [])
    out = export_dataset(tmp_path / "a.zarr", "minari", tmp_path / "out", data_format=data_format)
    lost = [one.what[:17] for one in out.losses if "reset" not in one.what]
    assert lost == ["the specification"]
    found = minari.MinariDataset(tmp_path / "out" / "data")
    assert_equal(found, made)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_store_has_what_minari_says(tmp_path, quick_disk, data_format):
    made = make("test/says-v0", *SPACES["box"], data_format)
    import_dataset("minari", tmp_path / "minari" / "test" / "says-v0" / "data", tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        for number, episode in enumerate(made.iterate_episodes()):
            found = store.trajectory(number)
            assert np.array_equal(found.observation, episode.observations)
            assert np.array_equal(found.action, episode.actions)
            assert np.array_equal(found.reward, episode.rewards)
            assert found.terminated == episode.terminations[-1]
            assert np.array_equal(found.extras["info.speed"], episode.infos["speed"][1:])
            assert found.episode["options.level"] == number
            assert found.episode["seed"] == (-1 if number == 2 else 100 + number)
            assert np.array_equal(found.episode["reset.speed"], episode.infos["speed"][0])


def test_the_specification_of_the_environment(tmp_path, quick_disk):
    env = gymnasium.make("CartPole-v1", max_episode_steps=30)
    first = env.reset(seed=0)[0]
    after, reward, end, cut, _ = env.step(1)
    buffer = EpisodeBuffer(
        observations=[first, after],
        actions=[1],
        rewards=[reward],
        terminations=[end],
        truncations=[cut],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = create_dataset_from_buffers("test/cartpole-v0", [buffer], env=env)
    source = tmp_path / "minari" / "test" / "cartpole-v0"
    import_dataset("minari", source, tmp_path / "a.zarr")
    assert export_dataset(tmp_path / "a.zarr", "minari", tmp_path / "out").losses == ()
    found = minari.MinariDataset(tmp_path / "out" / "data")
    assert found.env_spec == made.env_spec
    assert found.env_spec.max_episode_steps == 30
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert store.info()["env"]["id"] == "CartPole-v1"


def test_jpeg_images_are_decoded_as_minari_decodes_them(tmp_path, quick_disk):
    space = spaces.Box(0, 255, (40, 36, 3), np.uint8)
    for data_format in ("hdf5", "arrow"):
        made = make(f"test/{data_format}-v0", space, spaces.Discrete(3), data_format)
        source = tmp_path / "minari" / "test" / f"{data_format}-v0"
        import_dataset("minari", source, tmp_path / f"{data_format}.zarr")
        with mmreplay.open(tmp_path / f"{data_format}.zarr") as store:
            for number, episode in enumerate(made.iterate_episodes()):
                assert np.array_equal(store.trajectory(number).observation, episode.observations)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
@pytest.mark.parametrize(
    "frames",
    [{"frame": Field((3,), "float32")}, DICT, ARGUMENTS],
    ids=["array", "dict", "arguments"],
)
@pytest.mark.parametrize("play_into", [write, write_vector])
def test_a_store_of_our_own(tmp_path, quick_disk, monkeypatch, data_format, frames, play_into):
    monkeypatch.setattr("mmreplay.maintenance.episode_runs.block_steps", lambda row_bytes: 4)
    episodes = play(frames=frames, action=Field((), "int64"))
    store = play_into(tmp_path / "a.zarr", episodes)
    export_dataset(store, "minari", tmp_path / "own", data_format=data_format)
    found = minari.MinariDataset(tmp_path / "own" / "data")
    assert found.id == "mmreplay/own-v0"
    for episode, one in zip(found.iterate_episodes(), episodes, strict=True):
        observed = flat(episode.observations)
        for key, rows in one.observation.items():
            assert np.array_equal(observed[f"/{key}" if len(frames) > 1 else ""], rows)
        assert np.array_equal(episode.actions, one.action)
        assert np.array_equal(episode.rewards, one.reward)
        assert np.array_equal(episode.terminations, one.terminal)
        assert episode.truncations[-1] == (not one.terminated)
        assert np.array_equal(episode.infos["log_prob"][1:].ravel(), one.extras["log_prob"])
    back = import_dataset("minari", tmp_path / "own", tmp_path / "b.zarr", leave_out=["infos"])
    assert back.transitions == 25
    for one in episodes:
        one.extras = {}
    assert_same(read_back(tmp_path / "b.zarr"), episodes)


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("dtype", ["b", "L", "f4"])
def test_actions_and_extra_columns_come_back_as_they_were(tmp_path, quick_disk, data_format, dtype):
    extras = {"logp": Field((), "float32"), "info.logp": Field((2, 1), "uint8")}
    extras["log.prob"] = Field((), np.dtype(dtype))
    frames = {"a": Field((), np.dtype(dtype)), "b": Field((2,), "uint64")}
    episodes = play(frames=frames, action=Field((), np.dtype(dtype)), extras=extras)
    store = write(tmp_path / "a.zarr", episodes)
    out = export_dataset(store, "minari", tmp_path / "own", data_format=data_format)
    is_cast = data_format != "hdf5" and dtype in "bBhHiIL"
    assert any("the dtype of Discrete values" in one.what for one in out.losses) == is_cast
    found = minari.MinariDataset(tmp_path / "own" / "data")
    for one, other in zip(found.iterate_episodes(), episodes, strict=True):
        assert np.array_equal(one.actions.ravel(), other.action)
        assert np.array_equal(one.infos["logp"].ravel(), [0, *other.extras["logp"]])
    made = import_dataset("minari", tmp_path / "own", tmp_path / "b.zarr")
    assert but_lives(made.losses) == []
    for one in episodes if is_cast else ():
        one.action = one.action.astype("int64")
    assert_same(read_back(tmp_path / "b.zarr"), episodes)


@pytest.mark.parametrize("name", ["x-v0", "aa/b-v0", "D4RL/door/human-v12", "é_-v3", None])
def test_minari_loads_an_export_in_its_folder_by_its_id(tmp_path, datasets, quick_disk, name):
    store = write(tmp_path / "a.zarr", play())
    options = {} if name is None else {"dataset_id": name}
    export_dataset(store, "minari", tmp_path / "own", **options)
    name = name or "mmreplay/own-v0"
    shutil.copytree(tmp_path / "own", datasets / name)
    found = minari.load_dataset(name)
    assert (found.id, found.spec.dataset_id, found.total_steps) == (name, name, 25)


def test_an_export_to_an_id_is_in_the_folder_of_minari(tmp_path, datasets, quick_disk):
    store = write(tmp_path / "a.zarr", play())
    for name in ("deep/er/own-v0", "own-v1"):
        made = export_dataset(store, "minari", name)
        assert made.path == str(datasets / name)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert name in minari.list_local_datasets()
        assert (minari.load_dataset(name).id, minari.load_dataset(name).total_steps) == (name, 25)
        with pytest.raises(StoreExistsError, match=name):
            export_dataset(store, "minari", name)
    assert minari.namespace.list_local_namespaces() == ["deep", "deep/er"]
    import_dataset("minari", "deep/er/own-v0", tmp_path / "b.zarr", leave_out=["infos"])
    export_dataset(tmp_path / "b.zarr", "minari", "deep/other-v0")
    assert minari.load_dataset("deep/other-v0").id == "deep/other-v0"


def test_an_export_to_an_id_that_fails_leaves_no_folder(tmp_path, datasets, quick_disk):
    store = write(tmp_path / "a.zarr", play())
    with pytest.raises(SchemaError, match=r"dataset_id: expected 'deep/own-v0', as the target is"):
        export_dataset(store, "minari", "deep/own-v0", dataset_id="x-v0")
    with pytest.raises(StoreNotFoundError):
        export_dataset(tmp_path / "nothing.zarr", "minari", "deep/own-v0")
    assert not datasets.exists()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_minari_recovers_the_environment_of_a_store(tmp_path, quick_disk, data_format):
    env = gymnasium.wrappers.ClipReward(gymnasium.make("Pendulum-v1", max_episode_steps=9), -1, 1)
    recorded = mmreplay.RecordExperience(env, tmp_path / "a.zarr")
    for seed in range(2):
        recorded.reset(seed=seed)
        while not recorded.step(env.action_space.sample())[3]:
            pass
    recorded.close()
    made = export_dataset(tmp_path / "a.zarr", "minari", "test/own-v0", data_format=data_format)
    assert made.losses == ()
    found = minari.load_dataset("test/own-v0")
    again = found.recover_environment()
    assert (again.spec, found.env_spec) == (env.spec, env.spec)
    spaces_of_both = found.observation_space, found.action_space
    assert spaces_of_both == (again.observation_space, again.action_space)
    for episode in found.iterate_episodes():
        assert all(found.observation_space.contains(one) for one in episode.observations)
        assert episode.infos == {}
        assert repr(episode)
    assert found.storage.metadata["dataset_size"] == found.storage.get_size()


@pytest.mark.parametrize("text", ["no JSON", "[]", '{"id": "x"}', 5])
def test_metadata_of_the_user_are_not_taken_for_a_recipe(tmp_path, quick_disk, text):
    about = {"env_spec": text, "observation_space": text, "action_space": text}
    made = export_dataset(write(tmp_path / "a.zarr", play(), metadata=about), "minari", "own-v0")
    assert {one.what.partition(":")[0] for one in made.losses} >= {
        "the specification of the environment",
        "observation bounds",
        "action bounds",
    }
    assert minari.load_dataset("own-v0").env_spec is None


def test_what_no_store_holds_is_refused_or_said(tmp_path):
    make("test/text-v0", spaces.Dict({"say": spaces.Text(5), "x": BOX}), spaces.Discrete(3))
    made = import_dataset("minari", tmp_path / "minari" / "test" / "text-v0", tmp_path / "t.zarr")
    assert any("column observations/say: a store cannot" in one.what for one in made.losses)
    export_dataset(tmp_path / "t.zarr", "minari", tmp_path / "text", dataset_id="test/x-v0")
    make("test/two-v0", BOX, spaces.Dict({"a": BOX, "b": BOX}))
    with pytest.raises(FormatError, match="actions of several arrays"):
        import_dataset("minari", tmp_path / "minari" / "test" / "two-v0", tmp_path / "a.zarr")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="cannot be read as minari"):
        import_dataset("minari", tmp_path / "empty", tmp_path / "a.zarr")


def test_losses_are_counted(tmp_path, quick_disk):
    make("test/lossy-v0", *SPACES["box"], reset=1)
    path = tmp_path / "minari" / "test" / "lossy-v0"
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        file["episode_0/truncations"][2] = True
        file["episode_1/truncations"][0] = False
        file["episode_2/infos/text"] = ["a"] * 13
        file["episode_0/infos/text"] = ["a"] * 8
        del file["episode_3/infos/speed"]
        del file["episode_0"].attrs["options/level"]
    made = import_dataset("minari", path, tmp_path / "a.zarr")
    assert {one.what[:34]: one.count for one in made.losses} == {
        "column infos/text: a store cannot ": 1,
        "options/level of episodes: not in ": 3,
        "truncations within a numbered epis": 1,
        "infos/speed: not in this episode a": 1,
    }
