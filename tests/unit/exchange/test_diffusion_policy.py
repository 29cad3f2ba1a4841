"""diffusion_policy's layout: zarr v2, as documented; the library is not on PyPI."""

import json

import numcodecs
import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import FormatError, import_dataset


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


def test_a_choice_of_columns(pusht, tmp_path, quick_disk):
    columns = pusht(tmp_path / "in")
    import_dataset("diffusion_policy", tmp_path / "in", tmp_path / "a.zarr", leave_out=["data/img"])
    with mmreplay.open(tmp_path / "a.zarr") as store:
        batch = store.transitions(store.ids, stack=None)
        assert np.array_equal(batch.observation["state"], columns["state"])


def test_what_does_not_fit_is_refused(pusht, tmp_path):
    pusht(tmp_path / "in.zarr", short=np.ones((3, 1)))
    with pytest.raises(FormatError, match="short: 3 rows, of 10"):
        import_dataset("diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr")
    with pytest.raises(FormatError, match="episode_ends: expected an array of zarr v2, found no"):
        import_dataset("diffusion_policy", tmp_path, tmp_path / "a.zarr")
    (tmp_path / "in.zip").touch()
    with pytest.raises(FormatError, match="expected a directory; unzip it first"):
        import_dataset("diffusion_policy", tmp_path / "in.zip", tmp_path / "a.zarr")


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
        import_dataset(
            "diffusion_policy", tmp_path / "in.zarr", tmp_path / "a.zarr", columns=["data/state"]
        )


def test_what_is_left_out_is_reported(pusht, tmp_path, quick_disk):
    path = tmp_path / "in.zarr"
    pusht(path)
    root = zarr.open_group(path, mode="a", zarr_format=2)
    root.create_array("meta/success", data=np.ones(2))
    root.create_array("data/obs/force", data=np.ones((10, 1)))
    root["data/state"].attrs["unit"] = "m"
    ends = np.array([4, 4, 9])
    root.create_array("meta/episode_ends", data=ends, overwrite=True)
    (path / "notes.txt").write_text("x")
    about = path / "data" / "img" / ".zarray"
    codec = {"compressor": {"id": "imagecodecs_jpegxl"}}
    about.write_text(json.dumps(json.loads(about.read_text()) | codec))
    made = import_dataset("diffusion_policy", path, tmp_path / "a.zarr")
    losses = {one.what: one.count for one in made.losses}
    assert losses["arrays outside of data: meta/success"] == 1
    assert losses["attributes: data/state/.zattrs"] == 1
    assert losses["files that are not read: notes.txt"] == 1
    assert losses["episodes without a step: left out"] == 1
    assert losses["rows after the last end: they belong to no episode, left out"] == 1
    assert any("column data/img: cannot be read: " in one for one in losses)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert set(store.schema.frames) == {"state", "obs.force"}
        assert len(store) == 9


def test_observations_are_chosen_and_others_are_extras(pusht, tmp_path, quick_disk):
    path = tmp_path / "in.zarr"
    pusht(path)
    about = path / "data" / "img" / ".zarray"
    codec = {"compressor": {"id": "imagecodecs_jpegxl"}}
    about.write_text(json.dumps(json.loads(about.read_text()) | codec))
    made = import_dataset("diffusion_policy", path, tmp_path / "a.zarr", observations="state")
    assert any("column data/img: cannot be read: " in one.what for one in made.losses)
    with mmreplay.open(tmp_path / "a.zarr") as store:
        assert not store.schema.is_dict
    with pytest.raises(mmreplay.SchemaError, match=r"observations: expected some of .*'speed'"):
        import_dataset("diffusion_policy", path, tmp_path / "b.zarr", observations=["speed"])


def test_no_separator_of_chunk_names_leads_out_of_the_folder(pusht, tmp_path, quick_disk):
    path = tmp_path / "in.zarr"
    pusht(path)
    about = path / "data" / "action" / ".zarray"
    separator = {"dimension_separator": "/../../../../private"}
    about.write_text(json.dumps(json.loads(about.read_text()) | separator))
    with pytest.raises(FormatError, match=r"dimension_separator: expected '\.' or '/', found"):
        import_dataset("diffusion_policy", path, tmp_path / "a.zarr")
