"""The list of formats, and the arguments that name them."""

import subprocess
import sys

import pytest

import mmreplay
from mmreplay import SchemaError, export_dataset, import_dataset


def test_each_format_says_what_it_cannot_carry_where_it_can_be_used():
    for one in mmreplay.exchange_formats():
        assert (one.read is None) == (one.not_in is None), one.name
        assert (one.write is None) == (one.not_out is None), one.name
        assert one.about
    names = [one.name for one in mmreplay.exchange_formats()]
    assert names[:2] == ["arrays", "parquet"]
    assert len(set(names)) == len(names)


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


@pytest.mark.parametrize("value", ["no", "False", "maybe", 0, 1, None])
@pytest.mark.parametrize(
    ("name", "option"),
    [("arrays", "compressed"), ("robomimic", "next_obs")],
)
def test_a_switch_is_true_or_false(tmp_path, name, option, value):
    with pytest.raises(SchemaError, match=f"{name}: {option}: expected true or false, found"):
        export_dataset(tmp_path, name, tmp_path / "out", **{option: value})


def test_a_switch_of_an_import(tmp_path):
    with pytest.raises(SchemaError, match="infos: expected true or false, found 'maybe'"):
        import_dataset("minari", tmp_path, tmp_path / "a.zarr", infos="maybe")


def test_an_option_that_is_a_text(tmp_path):
    with pytest.raises(SchemaError, match="robomimic: key: expected a text, found False"):
        export_dataset(tmp_path, "robomimic", tmp_path / "out", key=False)


def test_options_tell_what_they_can_be():
    formats = {one.name: one for one in mmreplay.exchange_formats()}
    assert formats["arrays"].export_options == {"compressed": ["true", "false"]}
    assert formats["parquet"].import_options == {"final_observation": ["repeat", "drop"]}
    choices = ["zstd", "snappy", "gzip", "brotli", "lz4", "none"]
    assert formats["parquet"].export_options == {"compression": choices}
    assert formats["robomimic"].export_options == {"key": [], "next_obs": ["true", "false"]}
    assert formats["ogbench"].export_options == {}


def test_the_list_of_formats_needs_no_library_of_any():
    code = (
        "import sys, mmreplay; mmreplay.exchange_formats(); "
        "print(*{one.partition('.')[0] for one in sys.modules} & {'h5py', 'pyarrow', 'zarr'})"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == []
