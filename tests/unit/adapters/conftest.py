"""What the tests of adapters share."""

import shutil

import pytest

import mmreplay
from tests.support.epoch_stores import record


@pytest.fixture(scope="session")
def stores(tmp_path_factory):
    """The paths of closed stores by kind, of 300 steps of each environment."""
    known = {}

    def paths(kind):
        if kind not in known:
            known[kind] = record(tmp_path_factory.mktemp("stores"), kind, 300)
        return known[kind]

    return paths


@pytest.fixture
def replaceable(stores, tmp_path):
    """The path of a closed store, and a function that puts another store in its place."""
    path = shutil.copytree(stores("one lane")[0], tmp_path / "store.zarr")

    def replace():
        aside = path.rename(tmp_path / "aside.zarr")
        mmreplay.pack([aside], path, episodes=lambda table: table["id"] > table["id"].min())

    return path, replace
