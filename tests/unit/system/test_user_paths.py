"""Paths as users give them: impossible ones are refused with a reason, and nothing is created."""

import pathlib

import pytest

import mmreplay
from mmreplay import Field, ReplayBuffer
from mmreplay.errors import SchemaError, StoreExistsError, StoreNotFoundError

pytestmark = pytest.mark.usefixtures("quick_disk")

FIELDS = {"frame": Field((3,), "uint8", "raw", chunk=8), "action": Field((), "int64", chunk=8)}
IMPOSSIBLE = {
    "a NUL": "a\0b.zarr",
    "a NUL above": "a\0b/c.zarr",
    "a half": "a\ud800b.zarr",
    "long": "x" * 300,
    "long above": "x" * 300 + "/c.zarr",
    "long in all": "x/" * 3000 + "c.zarr",
}
NO_PATHS = [None, 5, b"bytes.zarr", ["store.zarr"], ""]


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory):
    """A folder with one closed store in it, for tests that change neither."""
    out = tmp_path_factory.mktemp("shared")
    mmreplay.create(out / "store.zarr", **FIELDS).close()
    return out


@pytest.fixture
def folder(shared_folder, monkeypatch):
    """The shared folder as the current one."""
    monkeypatch.chdir(shared_folder)
    return shared_folder


@pytest.fixture(params=IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def impossible(request):
    return request.param


def test_an_impossible_path_has_no_store(folder, impossible):
    for read in (
        mmreplay.open,
        mmreplay.load,
        lambda path: mmreplay.load(f"{path}*/y"),
        mmreplay.verify,
        mmreplay.repair,
        lambda path: mmreplay.snapshot(path, "copy.zarr"),
    ):
        with pytest.raises(StoreNotFoundError):
            read(impossible)
        assert [one.name for one in folder.iterdir()] == ["store.zarr"]


def test_nothing_is_created_at_an_impossible_path(folder, impossible):
    for make in (
        lambda path: mmreplay.create(path, **FIELDS),
        lambda path: mmreplay.create(path, **FIELDS, lane="mine"),
        lambda path: ReplayBuffer(path, **FIELDS),
        lambda path: mmreplay.snapshot("store.zarr", path),
        lambda path: mmreplay.record("CartPole-v1", path, 3, append=True),
    ):
        with pytest.raises(SchemaError, match=r"(path|target): '.*nothing can be made there"):
            make(impossible)
        assert [one.name for one in folder.iterdir()] == ["store.zarr"]


def test_a_name_leaves_room_for_the_longer_one_of_the_staging_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SchemaError, match="longer than the file system takes"):
        mmreplay.create("x" * 250, **FIELDS)
    longest = "x" * 241
    mmreplay.create(longest, **FIELDS).close()
    # Who has such a name all the same, by hand, is opened.
    pathlib.Path(longest).rename("x" * 255)
    mmreplay.create("x" * 255, append=True).close()
    with pytest.raises(StoreExistsError):
        mmreplay.create("x" * 255, **FIELDS)


def test_an_argument_that_is_no_path_is_named(folder):
    for path in NO_PATHS:
        for call in (
            mmreplay.open,
            mmreplay.verify,
            mmreplay.repair,
            lambda path: mmreplay.create(path, **FIELDS),
            lambda path: ReplayBuffer(path, **FIELDS),
            lambda path: mmreplay.snapshot(path, "copy.zarr"),
            lambda path: mmreplay.record("CartPole-v1", path, 3, append=True),
        ):
            with pytest.raises(SchemaError, match=r"path: expected a path, .* found "):
                call(path)
            with pytest.raises(SchemaError, match=r"target: expected a path, .* found "):
                mmreplay.snapshot("store.zarr", path)
            assert [one.name for one in folder.iterdir()] == ["store.zarr"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("file/c.zarr", "file: is not a directory; choose another path"),
        ("file/deeper/c.zarr", "file/deeper: cannot be looked into: Not a directory"),
        ("none/c.zarr", "none: there is no such directory; make one first, or choose another"),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        lambda path, _: mmreplay.create(path, **FIELDS),
        lambda path, store: mmreplay.snapshot(store, path),
    ],
)
def test_a_missing_directory_above_is_named(folder, tmp_path, monkeypatch, path, why, make):
    store = folder / "store.zarr"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a file")
    with pytest.raises(StoreNotFoundError, match=why):
        make(path, store)


def test_a_working_directory_that_was_removed_is_an_error_of_ours(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for call in (
        lambda: mmreplay.open("s.zarr"),
        lambda: mmreplay.load("s.zarr"),
        lambda: mmreplay.load("*.zarr"),
        lambda: mmreplay.create("s.zarr", Field((2,)), Field((), "int64")),
        lambda: mmreplay.ReplayBuffer("s.zarr"),
        lambda: mmreplay.snapshot("s.zarr", "copy.zarr"),
        lambda: mmreplay.verify("s.zarr"),
        lambda: mmreplay.repair("s.zarr"),
    ):
        with pytest.raises(mmreplay.MmreplayError):
            call()
