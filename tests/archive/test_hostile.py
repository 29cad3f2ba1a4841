"""Archives that a stranger has written: nothing leads out of the store, and nothing is too large."""

import io
import json
import os
import zipfile
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

import mmreplay
from mmreplay.format import compression
from tests.support.archives import write

CHUNK = ["frames/c.0.0", "00000001", 10]


@pytest.fixture
def store():
    """An archive of a store."""
    write("a.zarr", "raw, one", 40)
    store = MemoryStore()
    mmreplay.push("a.zarr", store)
    return store


def manifest(store):
    return json.loads(bytes(obstore.get(store, "mmreplay.json").bytes()))


def refused(store, errors=mmreplay.FormatError):
    """A pull fails, and makes nothing but its own folder."""
    before = everything()
    with pytest.raises(errors):
        mmreplay.pull(store, "deep/er/b.zarr")
    added = everything() - before
    assert {one.split("/")[2] for one in added if one.count("/") >= 2} <= {".b.zarr.pull"}


def everything():
    Path("deep/er").mkdir(parents=True, exist_ok=True)
    return {str(one) for one in Path().rglob("*")} | {str(one) for one in Path("..").glob("*")}


NAMES = [
    "../../../x",
    "frames/../../x/c.0",
    "/tmp/x/c.0",
    "frames//c.0",
    "frames/./c.0",
    "./frames/c.0",
    "frames\\c.0",
    "frames/c.0\0",
    "frames/c.0\n",
    "frames/c.-1",
    "frames/.live/c.0",
    ".live/c.0",
    ".live/state",
    "zarr.json",
    "frames/zarr.json",
    "checksums/frames/c.0",
    "priorities/c.0",
    "episodes/task/c.0",
    "lane-00001/frames/c.0",
    "frames/c.0.0.part",
    "frames/" + "x" * 200 + "/c.0",
    "frames/a/b/c/d/c.0",
    "",
    7,
    None,
    ["frames/c.0"],
]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_that_no_chunk_file_has_are_refused(name, store):
    own = manifest(store)
    own["lanes"][0]["chunks"].append([name, "00000001", 10])
    obstore.put(store, "mmreplay.json", json.dumps(own).encode())
    refused(store)


@pytest.mark.parametrize("name", ["..", "../x", "lane-1", "lane-000000", "/tmp", "frames", None, 3])
def test_names_that_no_lane_has_are_refused(name, store):
    own = manifest(store)
    own["lanes"][0]["name"] = name
    for document in (None, "{}"):
        own["document"] = document
        obstore.put(store, "mmreplay.json", json.dumps(own).encode())
        refused(store)


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own["lanes"][0]["chunks"].append(["frames/c.9.0", "00000001", 1 << 62]),
        lambda own: own["lanes"][0]["chunks"].append(["frames/c.9.0", "00000001", -1]),
        lambda own: own["lanes"][0]["chunks"].append(["frames/c.9.0", "00000001", 1.5]),
        lambda own: own["lanes"][0]["chunks"].append(["frames/c.9.0", "00000001", True]),
        lambda own: own["lanes"][0]["chunks"].append(["frames/c.9.0", "../../x", 10]),
        lambda own: own["lanes"][0]["chunks"].append(["frames/c.9.0", 1, 10]),
        lambda own: own["lanes"][0]["chunks"].append(["frames/c.9.0"]),
        lambda own: own["lanes"][0]["chunks"].append(own["lanes"][0]["chunks"][0]),
        lambda own: own["lanes"][0].update(rest=["00000001", 1 << 60]),
        lambda own: own["lanes"][0].update(rest=[]),
        lambda own: own["lanes"][0].pop("chunks"),
        lambda own: own["lanes"].append(own["lanes"][0]),
        lambda own: own.update(lanes=[]),
        lambda own: own.update(lanes={}),
        lambda own: own.update(lanes=None),
        lambda own: own.update(document=5),
        lambda own: own.update(gone=[]),
        lambda own: own.update(gone={"../../x": 0.0}),
        lambda own: own.update(gone={"another/frames/c.0.0@01234567": 0.0}),
        lambda own: own.update(gone={"frames/c.0.0@01234567": "never"}),
        lambda own: own.update(gone={"frames/c.0.0@01234567": 10**400}),
        lambda own: own.clear(),
    ],
)
def test_manifests_that_are_none_are_refused(change, store):
    own = manifest(store)
    change(own)
    obstore.put(store, "mmreplay.json", json.dumps(own).encode())
    refused(store)
    with pytest.raises(mmreplay.FormatError):
        mmreplay.push("a.zarr", store)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{", b"\xff" * 100, b"[" * 100_000, b'{"archive": NaN}'], ids=repr
)
def test_what_is_not_a_manifest_is_refused(data, store):
    obstore.put(store, "mmreplay.json", data)
    refused(store)


def test_a_manifest_that_is_too_large_is_not_read(store, monkeypatch):
    from mmreplay.archive import manifest as module

    monkeypatch.setattr(module, "SMALL_BYTES", 100)
    refused(store, mmreplay.FailedStoreError)


def test_an_object_larger_than_it_should_be_is_not_received(store):
    key = next(
        one["path"]
        for some in obstore.list(store)
        for one in some
        if one["path"].startswith("frames/")
    )
    obstore.put(store, key, bytes(50 << 20))
    refused(store, mmreplay.FailedStoreError)


# ---------------------------------------------------------------- the zip of the rest


def with_rest(store, members, change=None):
    """Replace the rest of an archive by a zip of (name, bytes)."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as rest:
        for name, data in members:
            rest.writestr(name, data)
    data = packed.getvalue()
    if change is not None:
        data = change(data)
    crc = compression.crc32c(data)
    obstore.put(store, f"rest@{crc:08x}", data)
    own = manifest(store)
    own["lanes"][0]["rest"] = [f"{crc:08x}", len(data)]
    obstore.put(store, "mmreplay.json", json.dumps(own).encode())


@pytest.mark.parametrize(
    "name",
    [
        "../../../x",
        "../zarr.json",
        "/tmp/x/zarr.json",
        "frames/../../zarr.json",
        ".live/state",
        "frames/c.0.0",
        "mmreplay.json",
        "frames/",
        "frames/zarr.json/",
        "frames\\..\\..\\zarr.json",
        "C:/zarr.json",
        "a/b/c/d/e/zarr.json",
    ],
)
def test_names_in_a_rest_that_no_store_has_are_refused(name, store):
    with_rest(store, [("zarr.json", b"{}"), (name, b"hostile")])
    refused(store)


def test_a_link_in_a_rest_becomes_a_file(store):
    link = zipfile.ZipInfo("derived/zarr.json")
    link.external_attr = 0o120777 << 16
    with_rest(store, [(link, b"/etc/passwd")])
    refused(store, mmreplay.MmreplayError)
    found = Path("deep/er/.b.zarr.pull/new/derived/zarr.json")
    assert not found.is_symlink()


def test_a_name_twice_is_refused(store):
    with pytest.warns(UserWarning, match="Duplicate"):
        with_rest(store, [("zarr.json", b"{}"), ("zarr.json", b"{}")])
    refused(store)


def test_a_rest_that_would_fill_the_disk_is_refused(store, monkeypatch):
    from mmreplay.archive import pull

    monkeypatch.setattr(pull, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(pull, "_MOST_RATIO", 10)
    with_rest(store, [("zarr.json", bytes(10 << 20))])
    refused(store)
    assert not list(Path("deep/er/.b.zarr.pull/new").glob("zarr.json"))


def test_members_that_share_their_bytes_do_not_fill_the_disk(store, monkeypatch):
    """As of a zip bomb whose names all stand for the same bytes: their sizes are added up."""
    from mmreplay.archive import pull

    monkeypatch.setattr(pull, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(pull, "_MOST_RATIO", 10)
    with_rest(store, [(f"a{n}/zarr.json", bytes(1 << 18)) for n in range(40)])
    refused(store)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-30],
        lambda data: data[:40] + b"\xff" * 20 + data[60:],
        lambda data: b"not a zip" * 10,
        lambda data: b"",
        lambda data: data.replace(b"\x08\x00", b"\x0e\x00"),  # another compression
    ],
)
def test_what_is_not_a_zip_is_refused(change, store):
    with_rest(store, [("zarr.json", os.urandom(500))], change)
    refused(store, mmreplay.MmreplayError)


def test_a_rest_without_a_store_in_it_is_refused(store):
    with_rest(store, [])
    refused(store, mmreplay.MmreplayError)


def test_a_directory_in_place_of_a_file_is_an_error_of_ours(store):
    own = manifest(store)
    key = own["lanes"][0]["chunks"][0]
    own["lanes"][0]["chunks"] = [["frames/c.0/c.0", *key[1:]], ["frames/c.0", *key[1:]]]
    for path, crc, _ in own["lanes"][0]["chunks"]:
        found = bytes(obstore.get(store, f"{key[0]}@{crc}").bytes())
        obstore.put(store, f"{path}@{crc}", found)
    obstore.put(store, "mmreplay.json", json.dumps(own).encode())
    refused(store, mmreplay.MmreplayError)


def test_a_link_in_place_of_the_folder_of_a_pull_is_not_followed(store):
    Path("elsewhere").mkdir()
    Path("deep/er").mkdir(parents=True)
    Path("deep/er/.b.zarr.pull").symlink_to(Path("elsewhere").absolute())
    with pytest.raises(mmreplay.CorruptStoreError, match="link"):
        mmreplay.pull(store, "deep/er/b.zarr")
    assert list(Path("elsewhere").iterdir()) == []
