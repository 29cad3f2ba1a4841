"""Object storage where its extra is not installed; all else is in tests/archive."""

import sys

import numpy as np
import pytest

import mmreplay


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with mmreplay.create("a.zarr", mmreplay.Field((3,)), mmreplay.Field((), "int64")) as writer:
        writer.reset(np.zeros(3, np.uint8))
        writer.step(0, 0.0, np.zeros(3, np.uint8))
    return "a.zarr"


@pytest.mark.parametrize(
    ("url", "extra"),
    [("s3://bucket/pong", "s3"), ("hf://datasets/somebody/pong", "huggingface")],
)
def test_the_message_has_the_command_that_helps(url, extra, store, tmp_path):
    for call in (
        lambda: mmreplay.push(store, url),
        lambda: mmreplay.pull(url, "b.zarr"),
        lambda: mmreplay.load(url, cache="cache"),
    ):
        with pytest.raises(mmreplay.MissingExtraError, match=rf'pip install "mmreplay\[{extra}\]"'):
            call()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.zarr", "cache"]


@pytest.mark.parametrize("call", [mmreplay.open, mmreplay.load, mmreplay.verify, mmreplay.repair])
def test_what_takes_a_path_names_pull(call):
    with pytest.raises(mmreplay.StoreNotFoundError, match="mmreplay pull s3://bucket/pong PATH"):
        call("s3://bucket/pong")


def test_a_path_that_looks_a_little_like_a_url_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a:b.zarr", "s3:bucket", "1://x"):
        with pytest.raises(mmreplay.StoreNotFoundError, match="no store here"):
            mmreplay.open(name)
