"""diffusion_policy's layout both ways: zarr v2, as documented; the library is not on PyPI."""

import json

import numcodecs
import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import FormatError, export_dataset, import_dataset
from tests.support.played_episodes import DICT, assert_same, play, read_back, write, write_vector


@pytest.mark.parametrize("make", [write, write_vector])
@pytest.mark.parametrize("block", [3, 1000])
def test_there_and_back(tmp_path, quick_disk, monkeypatch, make, block):
    for module in ("maintenance.episodes", "exchange.columns"):
        monkeypatch.setattr(f"mmreplay.{module}.block_steps", lambda row_bytes: block)
    monkeypatch.setattr("mmreplay.exchange.diffusion_policy.BLOCK_BYTES", 1000)
    episodes = play(frames=DICT)
    store = make(tmp_path / "a.zarr", episodes)
    out = export_dataset(store, "diffusion_policy", tmp_path / "out.zarr")
    assert {one.what[:5]: one.count for one in out.losses} == {"final": 4}
    back = import_dataset("diffusion_policy", tmp_path / "out.zarr", tmp_path / "b.zarr")
    assert (back.transitions, back.terminated, back.truncated) == (25, 2, 2)
    for one in episodes:
        for rows in one.observation.values():
            rows[-1] = rows[-2]
    assert_same(read_back(tmp_path / "b.zarr"), episodes)


def test_zarr_reads_what_is_exported(tmp_path, quick_disk):
    episodes = play()
    store = write(tmp_path / "a.zarr", episodes)
    export_dataset(store, "diffusion_policy", tmp_path / "out.zarr", key="state")
    root = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert root.metadata.zarr_format == 2
    assert root["meta/episode_ends"][:].tolist() == [7, 8, 20, 25]
    assert root["meta/episode_ends"].dtype == np.int64
    actions = np.concatenate([one.action for one in episodes])
    assert np.array_equal(root["data/action"][:], actions)
    observed = np.concatenate([one.observation["frame"][:-1] for one in episodes])
    assert np.array_equal(root["data/state"][:], observed)


@pytest.fixture
def pusht(tmp_path):
    """The columns that the Push-T demonstrations have."""

    def make(store, **more):
        root = zarr.open_group(store, mode="w", zarr_format=2)
        columns = {
            "img": np.arange(10 * 12, dtype="f4").reshape(10, 2, 2, 3),
            "state": np.arange(50, dtype="f4").reshape(10, 5),
            "action": np.arange(20, dtype="f4").reshape(10, 2),
            **more,
        }
        for name, rows in columns.items():
            root.create_array(f"data/{name}", data=rows)
        root.create_array("meta/episode_ends", data=np.array([4, 10]))
        return columns

    return make


def test_all_columns_but_the_action_are_observations(pusht, tmp_path, quick_disk):
    columns = pusht(tmp_path / "in.zarr")
    made = import_dataset("diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr")
    assert (made.transitions, made.episodes, made.truncated) == (10, 2, 2)
    assert {one.what[:7]: one.count for one in made.losses} == {"rewards": 10, "final o": 2}
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        assert np.array_equal(batch.observation["img"], columns["img"])
        assert np.array_equal(batch.action, columns["action"])


def test_a_zip_and_a_choice_of_observations(pusht, tmp_path, quick_disk):
    with zarr.storage.ZipStore(tmp_path / "in.zip", mode="w") as archive:
        columns = pusht(archive)
    import_dataset(
        "diffusion_policy", tmp_path / "in.zip", tmp_path / "a.zarr", observations="state"
    )
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        assert np.array_equal(batch.observation, columns["state"])
        assert np.array_equal(batch.extras["img"], columns["img"])


def test_what_does_not_fit_is_refused(pusht, tmp_path):
    pusht(tmp_path / "in.zarr", short=np.ones((3, 1)))
    with pytest.raises(FormatError, match="short: 3 rows, of 10"):
        import_dataset("diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr")
    with pytest.raises(FormatError, match="no column 'pose' of observations"):
        import_dataset(
            "diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr", observations=["pose"]
        )
    with pytest.raises(FormatError, match="episode_ends: expected an array of zarr v2, found no"):
        import_dataset("diffusion_policy", tmp_path, tmp_path / "a.zarr")


@pytest.mark.parametrize("ends", [[6, 3], [-1, 6], [3.5, 10.0]])
def test_ends_of_episodes_that_are_none_are_refused(pusht, tmp_path, ends):
    pusht(tmp_path / "in.zarr")
    root = zarr.open_group(tmp_path / "in.zarr", mode="a", zarr_format=2)
    root.create_array("meta/episode_ends", data=np.array(ends), overwrite=True)
    with pytest.raises(FormatError, match="episode_ends: expected the rows at which episodes end"):
        import_dataset("diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr")


def test_chunks_that_were_left_out_and_all_codecs(pusht, tmp_path, quick_disk):
    columns = pusht(tmp_path / "in.zarr")
    codecs = {
        "img": numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.BITSHUFFLE),
        "state": numcodecs.Zstd(),
        "action": numcodecs.GZip(),
    }
    root = zarr.open_group(tmp_path / "in.zarr", mode="a", zarr_format=2)
    for name, codec in codecs.items():
        chunks = (3, *columns[name].shape[1:])
        made = {"chunks": chunks, "compressors": codec, "fill_value": 7, "overwrite": True}
        root.create_array(f"data/{name}", data=columns[name].astype(">f4"), **made)
    for path in (tmp_path / "in.zarr" / "data").glob("*/1.*"):
        path.unlink()
    import_dataset("diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr")
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
    for name, rows in columns.items():
        rows[3:6] = 7
        assert np.array_equal(batch.action if name == "action" else batch.observation[name], rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"compressor": {"id": "pickle", "protocol": 4}}, "expected one of blosc, zstd, gzip as"),
        ({"filters": [{"id": "pickle", "protocol": 4}]}, "expected rows in order C without filter"),
        ({"order": "F"}, "expected rows in order C without filters"),
        ({"dtype": "|O"}, "Python objects and texts, which nothing here opens"),
        ({"chunks": [10, 4]}, "expected chunks of whole rows of"),
        ({"chunks": [10**8, 5]}, "a chunk: expected at most .* found 2,000,000,000"),
        ({"chunks": [1, 10**8], "shape": [10, 10**8]}, "expected rows of at most"),
        ({"shape": [-1, 5]}, "expected chunks of whole rows"),
        ({"compressor": {"id": "gzip"}}, "chunk 0: expected a gzip stream for 200 bytes"),
        ({"compressor": None, "chunks": [9, 5]}, "cannot be read as diffusion_policy: ValueError"),
    ],
    ids=str,
)
def test_no_codec_but_ours_is_reached(pusht, tmp_path, change, message):
    pusht(tmp_path / "in.zarr")
    path = tmp_path / "in.zarr" / "data" / "state" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FormatError, match=message):
        import_dataset("diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr")


def test_a_column_that_cannot_be_read_and_was_not_chosen_is_a_loss(pusht, tmp_path, quick_disk):
    pusht(tmp_path / "in.zarr")
    path = tmp_path / "in.zarr" / "data" / "img" / ".zarray"
    about = json.loads(path.read_text()) | {"compressor": {"id": "imagecodecs_jpegxl"}}
    path.write_text(json.dumps(about))
    with pytest.raises(FormatError, match="img: expected one of blosc, zstd, gzip"):
        import_dataset("diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr")
    made = import_dataset(
        "diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr", observations="state"
    )
    assert any(one.what.startswith("column img, which cannot be read") for one in made.losses)
