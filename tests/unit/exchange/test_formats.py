"""The list of formats, and the arguments that name them."""

import sys

import pytest

import mmreplay
from mmreplay import (
    MissingExtraError,
    SchemaError,
    export_dataset,
    import_dataset,
)
from mmreplay.exchange.tables import ROLES
from tests.support.disks.trees import names
from tests.support.played_episodes import play, write


def test_each_format_says_what_it_cannot_carry_where_it_can_be_used():
    for one in mmreplay.exchange_formats():
        assert (one.read is None) == (one.not_in is None), one.name
        assert (one.write is None) == (one.not_out is None), one.name
        assert one.about
    found = [one.name for one in mmreplay.exchange_formats()]
    assert len(set(found)) == len(found)


def test_a_format_that_there_is_not(tmp_path):
    with pytest.raises(
        SchemaError, match=r"format: expected one of arrays, .*did you mean 'arrays'"
    ):
        import_dataset("array", tmp_path, tmp_path / "a.zarr")
    with pytest.raises(SchemaError, match="format: expected one of"):
        export_dataset(tmp_path, None, tmp_path / "a.npz")


def test_an_option_that_there_is_not(tmp_path):
    with pytest.raises(SchemaError, match=r"arrays: no such option as 'x'; it has final_observ"):
        import_dataset("arrays", {}, tmp_path / "a.zarr", x=1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arrays", {"compressed": "no"}, "compressed: expected true or false, found 'no'"),
        ("robomimic", {"next_obs": 0}, "next_obs: expected true or false, found 0"),
        ("lerobot", {"task": 3}, "task: expected a text, found 3"),
        ("parquet", {"compression": [1]}, "compression: expected one of zstd, snappy, gzip, "),
        ("minari", {"data_format": "csv"}, "data_format: expected one of hdf5, arrow, parquet, f"),
    ],
)
def test_options_of_another_type_are_refused(tmp_path, name, options, message):
    with pytest.raises(SchemaError, match=f"{name}: {message}"):
        export_dataset(tmp_path, name, tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lerobot", {"fps": 0}, "fps: expected a whole number"),
        ("lerobot", {"task": ""}, "task: expected a text that is not empty"),
    ],
)
def test_options_that_a_format_refuses_leave_nothing(tmp_path, quick_disk, name, options, message):
    store = write(tmp_path / "a.zarr", play())
    with pytest.raises(SchemaError, match=message):
        export_dataset(store, name, tmp_path / "out", **options)
    assert names(tmp_path) == ["a.zarr"]


LIBRARIES = {
    "d4rl": ["h5py"],
    "lerobot": ["pyarrow.parquet", "pyarrow"],
    "parquet": ["pyarrow.parquet", "pyarrow"],
    "rlds": ["google.protobuf"],
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_the_command_to_install_it(
    tmp_path, quick_disk, monkeypatch, name
):
    for module in LIBRARIES[name]:
        monkeypatch.setitem(sys.modules, module, None)
    store = write(tmp_path / "a.zarr", play())
    (tmp_path / "in").mkdir()
    for suffix in ("parquet", "hdf5"):
        (tmp_path / "in" / f"x.{suffix}").touch()
    expected = r"needs \w+: pip install \"mmreplay\[exchange\]\""
    with pytest.raises(MissingExtraError, match=expected):
        import_dataset(name, tmp_path / "in", tmp_path / "b.zarr")
    if "pyarrow.parquet" in LIBRARIES[name]:
        with pytest.raises(MissingExtraError, match=expected):
            export_dataset(store, name, tmp_path / "out")
    assert names(tmp_path) == ["a.zarr", "in"]


def test_options_tell_what_they_can_be():
    formats = {one.name: one for one in mmreplay.exchange_formats()}
    assert formats["arrays"].export_options == {"compressed": ["true", "false"]}
    known = formats["parquet"].import_options
    assert known.pop("final_observation") == ["repeat", "drop"]
    assert known == {role: [] for role in ROLES}
    choices = ["zstd", "snappy", "gzip", "brotli", "lz4", "none"]
    assert formats["parquet"].export_options == {"compression": choices}
    assert formats["robomimic"].export_options == {"next_obs": ["true", "false"]}
    assert formats["ogbench"].export_options == {}
