"""A store in a repository of the Hugging Face Hub, of which a folder stands in."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest

import mmreplay
from tests.support.archives import assert_same, begin, write
from tests.support.numbered_steps import play

URL = "hf://datasets/somebody/pong"


class Hub:
    """A repository in a folder; pulls get links to copies, as from the library's cache."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.commits, self.conflict = folder / "hub", [], False
        self.cache = folder / "cache"
        monkeypatch.setattr(huggingface_hub, "HfApi", lambda: self)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot_download)

    def create_repo(self, name, *, repo_type, exist_ok):
        assert (name, repo_type, exist_ok) == ("somebody/pong", "dataset", True)
        self.folder.mkdir(exist_ok=True)

    def repo_info(self, name, *, repo_type):
        return SimpleNamespace(sha=f"commit {len(self.commits)}")

    def file_exists(self, name, file, *, repo_type):
        return (self.folder / file).exists()

    def upload_folder(self, *, folder_path, delete_patterns, parent_commit, **_):
        if self.conflict or parent_commit != f"commit {len(self.commits)}":
            error = huggingface_hub.errors.HfHubHTTPError.__new__(
                huggingface_hub.errors.HfHubHTTPError, "changed"
            )
            error.response = SimpleNamespace(status_code=412)
            raise error
        for pattern in delete_patterns:
            shutil.rmtree(self.folder / pattern.removesuffix("/*"), ignore_errors=True)
        shutil.copytree(folder_path, self.folder, dirs_exist_ok=True)
        self.commits.append(sorted(one.name for one in Path(folder_path).iterdir()))

    def snapshot_download(self, name, *, repo_type, allow_patterns):
        assert (repo_type, allow_patterns) == ("dataset", ["store.zarr/*"])
        snapshot = self.cache / f"snapshot-{len(self.commits)}"
        shutil.rmtree(snapshot, ignore_errors=True)
        snapshot.mkdir(parents=True)
        for number, file in enumerate(sorted((self.folder / "store.zarr").rglob("*"))):
            if file.is_file():
                link = snapshot / file.relative_to(self.folder)
                link.parent.mkdir(parents=True, exist_ok=True)
                blob = self.cache / f"{len(self.commits)}-{number}"
                shutil.copy(file, blob)
                link.unlink(missing_ok=True)
                link.symlink_to(blob)
        return str(snapshot)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    return Hub(tmp_path, monkeypatch)


@pytest.mark.parametrize("kind", ["lz4, one", "zstd, named"])
def test_a_store_goes_to_the_hub_and_back(kind, hub):
    writer, width = begin("a.zarr", kind, 60)
    pushed = mmreplay.push("a.zarr", URL)
    assert hub.commits == [["README.md", "store.zarr"]]
    pulled = mmreplay.pull(URL, "b.zarr")
    assert pushed.bytes == pulled.bytes > 0
    play(writer, 30, width, reset=False)
    writer.close()
    mmreplay.push("a.zarr", URL)
    assert hub.commits[1:] == [["store.zarr"]]  # the card is the user's
    mmreplay.pull(URL, "b.zarr")
    assert_same("a.zarr", "b.zarr")
    with mmreplay.load(URL, cache="mirrors", stack=None) as data:
        assert len(data) == len(mmreplay.open("a.zarr"))


def test_the_card_and_the_page_go_along(hub):
    write("a.zarr", metadata={"id": "ALE/Pong-v5"})
    mmreplay.export_view("a.zarr", "page")
    mmreplay.push("a.zarr", URL, page="page")
    assert (hub.folder / "page" / "index.html").is_file()
    card = (hub.folder / "README.md").read_text()
    assert "100 transitions of ALE/Pong-v5" in card
    assert f'mmreplay.load("{URL}", cache="data")' in card
    assert "page" in card


def test_a_page_that_is_none_is_refused(hub):
    write("a.zarr")
    with pytest.raises(mmreplay.SchemaError, match="export_view"):
        mmreplay.push("a.zarr", URL, page="nowhere")
    assert hub.commits == []


def test_a_repository_that_was_changed_meanwhile_is_said(hub):
    write("a.zarr")
    hub.conflict = True
    with pytest.raises(mmreplay.LockedError, match="changed while this push ran"):
        mmreplay.push("a.zarr", URL)


def test_damaged_and_odd_files_are_refused(hub):
    write("a.zarr", "raw, one")
    mmreplay.push("a.zarr", URL)
    file = hub.folder / "store.zarr" / "frames" / "c.1.0"
    data = file.read_bytes()
    file.write_bytes(bytes(len(data)))
    with pytest.raises(mmreplay.CorruptStoreError):
        mmreplay.pull(URL, "b.zarr")
    file.write_bytes(data)
    odd = hub.folder / "store.zarr" / ".live" / "state"
    odd.parent.mkdir()
    odd.write_bytes(b"x")
    with pytest.raises(mmreplay.FormatError):
        mmreplay.pull(URL, "b.zarr")
    assert not Path("b.zarr").exists()
    shutil.rmtree(hub.folder / "store.zarr")
    with pytest.raises(mmreplay.StoreNotFoundError):
        mmreplay.pull(URL, "b.zarr")


@pytest.mark.parametrize("url", ["hf://somebody/pong", "hf://datasets/pong", "hf://datasets/a/b/c"])
def test_urls_of_no_dataset_are_refused(url):
    write("a.zarr", n_steps=20)
    for call in (lambda: mmreplay.push("a.zarr", url), lambda: mmreplay.pull(url, "b.zarr")):
        with pytest.raises(mmreplay.SchemaError, match="hf://datasets/OWNER/NAME"):
            call()
