"""A copy of the page with its data, as files for any static host.

Invariant: the files are the answers of the server under their own paths, and the folder has its
name when it is whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.arguments import any_whole_number, whole_number
from mmreplay.batches.settings import Settings
from mmreplay.errors import InvalidIdError, MmreplayError, SchemaError, StoreExistsError
from mmreplay.ids import Ids
from mmreplay.storage.lane_metadata import store_around
from mmreplay.system import durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.staging import staging_directory
from mmreplay.viewer.answers import Answers
from mmreplay.viewer.columns import FRAME_ROWS, shown_columns
from mmreplay.viewer.documents import episode_table
from mmreplay.viewer.episode import kept_episodes
from mmreplay.viewer.page import page_files
from mmreplay.viewer.view import Paths, first_id, listed
from mmreplay.viewer.viewed_store import GoneError


@dataclasses.dataclass(frozen=True, slots=True)
class ExportedView:
    """What `export_view` wrote.

    Attributes:
        path: the folder.
        files: how many.
        n_bytes: of all files.
        episodes: of all stores; the page lists all of them.
        exported_episodes: those whose frames are in the folder.
    """

    path: str
    files: int
    n_bytes: int
    episodes: int
    exported_episodes: int


def export_view(
    paths: Paths,
    folder: str | os.PathLike[str],
    *,
    frames: int = 20_000,
    episode: int | None = None,
) -> ExportedView:
    """Write the page on some stores into a folder for any static host.

    It has the tables and charts of all episodes, and of whole episodes that lie evenly over each
    recording all rows, up to the number of frames. Live stores are shown as of now, without the
    frames of what is evicted meanwhile. No server of
    mmreplay is needed to look at it, but a host for files: browsers do not load it from a disk.

    Args:
        paths: one store, or several, which are compared.
        folder: a new or an empty one, which is replaced.
        frames: at most so many frames of each store.
        episode: as of `view`; its frames are in the folder in any case.

    Raises:
        StoreExistsError: there is something in the folder, or it cannot be replaced: it is where
            this process works, or a file system is mounted there.
        SchemaError: it lies within a store.
        StoreNotFoundError: no store there, or no directory above the folder.
        DiskFullError, FailedStoreError: no room, or a write failed; nothing is left behind.
        MmreplayError: a store cannot be opened.
    """
    frames = whole_number("frames", frames)
    target = user_paths.path_to_create(folder, "folder")
    if os.path.lexists(target):
        target = _replaceable(target)
    user_paths.check_parent(target)
    if (store := store_around(target)) is not None:
        raise SchemaError(f"{target}: lies within the store {store}; choose another folder")
    answers = Answers(listed(paths), is_static=True)
    try:
        with staging_directory(target) as staged:
            export = _Export(answers, staged / target.name)
            export.run(frames, episode)
            durable_writes.sync_tree(staged)
            if not durable_writes.replace_directory(export.built, staged.with_name(target.name)):
                raise StoreExistsError(f"{target}: somebody else made it at this moment")
    finally:
        answers.close()
    return export.made(str(user_paths.as_path(folder)))


def _replaceable(target: Path) -> Path:
    """An empty folder, links to it followed."""
    if not target.is_dir() or any(target.iterdir()):
        raise StoreExistsError(f"{target}: there is something already; give a new folder")
    if target.samefile(".") or target.is_mount():
        raise StoreExistsError(
            f"{target}: it is in use, as a working directory or a mount point, and cannot be "
            f"replaced; give a new folder in it"
        )
    return target.resolve()


class _Export:
    def __init__(self, answers: Answers, built: AnyPath) -> None:
        self.built = built
        self._answers = answers
        self._files = self._bytes = self._episodes = self._exported = 0

    def made(self, path: str) -> ExportedView:
        return ExportedView(path, self._files, self._bytes, self._episodes, self._exported)

    def run(self, frames: int, episode: int | None) -> None:
        answers = self._answers
        wanted = None
        if episode is not None:
            wanted = any_whole_number("episode", episode)
            answers.start = {"store": 0, "episode": first_id(answers, wanted)}
        about = json.loads(answers.about().body)
        for number, viewed in enumerate(answers.stores):
            error = about["stores"][number]["head"]["error"]
            if error is not None:
                raise MmreplayError(error)
            head = about["stores"][number]["head"]
            if head["state"] == "live":  # the copy is not
                head["state"] = "copied while it was written"
            # One look: a live store goes on meanwhile, and the page asks for what it had then.
            kept = kept_episodes(viewed.store)
            episodes, _ = kept
            chosen = evenly_chosen(episodes["length"] + 1, frames)
            if wanted is not None and number == 0:
                first = int(answers.start["episode"])
                chosen = np.union1d(chosen, np.flatnonzero(episodes["id"] == first))
            self._write(f"data/{number}/episodes.bin", episode_table(viewed.store, kept))
            about["stores"][number]["exported"] = [
                str(int(one["id"]))
                for one in episodes[chosen]
                if self._episode(number, about["stores"][number], one)
            ]
            self._episodes += len(episodes)
            self._exported += len(about["stores"][number]["exported"])
        self._write("data/distributions.json", answers.distributions().body)
        self._write("data/stores.json", json.dumps(about).encode())
        for name, file in page_files().items():
            self._write(name if name == "index.html" else f"static/{name}", file.body)

    def _episode(self, number: int, about: dict[str, Any], episode: Any) -> bool:
        """Write an episode's rows; False, and nothing of it is left, if it is evicted meanwhile."""
        first, length = int(episode["id"]), int(episode["length"])
        folder = f"data/{number}/{about['head']['version']}/episode/{first}"
        before = self._files, self._bytes
        try:
            self._rows(number, about, folder, first, length)
        except (GoneError, InvalidIdError):
            durable_writes.remove_tree(self.built / folder)
            self._files, self._bytes = before
            return False
        return True

    def _rows(
        self, number: int, about: dict[str, Any], folder: str, first: int, length: int
    ) -> None:
        answers, version = self._answers, about["head"]["version"]
        for column in shown_columns(answers.stores[number].store.schema):
            if column.kind == "priority" and not about["has_priorities"]:
                continue
            for start, stop in _blocks(length + (column.kind == "frame"), column.block):
                answer = answers.rows(number, version, first, column.number, start, stop)
                self._write(f"{folder}/rows/{column.number}/{start}-{stop}.bin", answer.body)
        settings = Settings(about["stack"], padding=about["padding"])
        named = f"{settings.stack}/{settings.n_step}/{settings.gamma}/{settings.padding}"
        for start, stop in _blocks(length, FRAME_ROWS):
            found = answers.transitions(number, version, first, start, stop, settings)
            self._write(f"{folder}/transitions/{named}/{start}-{stop}.bin", found.body)

    def _write(self, name: str, body: bytes) -> None:
        path = self.built / name
        durable_writes.make_directory(path.parent)
        durable_writes.write_new(path, body)
        self._files += 1
        self._bytes += len(body)


def _blocks(n_rows: int, block: int) -> list[tuple[int, int]]:
    """As the page asks for them."""
    return [(start, min(start + block, n_rows)) for start in range(0, n_rows, block)]


def evenly_chosen(lengths: Ids, most: int) -> Ids:
    """The numbers of as many episodes as have `most` frames together, spread evenly; ascending.

    Args:
        lengths: (n,) frames of each.
        most: of those chosen together.
    """
    low, high = 0, len(lengths)
    while low < high:
        middle = (low + high + 1) // 2
        fits = lengths[_spread(len(lengths), middle)].sum() <= most
        low, high = (middle, high) if fits else (low, middle - 1)
    return _spread(len(lengths), low)


def _spread(n: int, k: int) -> Ids:
    out: Ids = ((np.arange(k) * 2 + 1) * n // max(2 * k, 1)).astype(np.int64)
    return out
