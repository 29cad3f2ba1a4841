"""Copy the page and its data into files for any static host.

Invariant: the files are the answers of the server under their own paths, and the folder gets its
name only when it is complete.
"""

from __future__ import annotations

import bisect
import dataclasses
import json
import os
from typing import Any

import numpy as np

from mmreplay.arguments import whole_number
from mmreplay.batches.settings import Settings
from mmreplay.errors import InvalidIdError, MmreplayError, SchemaError, StoreExistsError
from mmreplay.ids import Ids
from mmreplay.storage.lane_metadata import store_around
from mmreplay.system import durable_writes, user_paths
from mmreplay.system.held_directories import AnyPath
from mmreplay.system.staging import staging_directory
from mmreplay.viewer.answers import Answers
from mmreplay.viewer.documents import episode_table
from mmreplay.viewer.episode import kept_episodes
from mmreplay.viewer.page import page_files
from mmreplay.viewer.shown_columns import FRAME_ROWS, shown_columns
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

    The folder has the tables and charts of all episodes, and the rows of whole episodes at even
    distances over each recording. Live stores are copied as of now, without the frames of episodes
    that are evicted meanwhile. The page needs a web server, but not mmreplay: browsers do not load
    it from a disk.

    Args:
        paths: one store, or several, which are compared.
        folder: a new one.
        frames: most frames per store.
        episode: as for `view`; its frames are always included.

    Raises:
        StoreExistsError: the folder exists.
        SchemaError: it lies within a store.
        StoreNotFoundError: no store there, or no directory above the folder.
        DiskFullError, FailedStoreError: no room, or a write failed; nothing is left behind.
        MmreplayError: a store cannot be opened.
    """
    frames = whole_number("frames", frames)
    target = user_paths.path_to_create(folder, "folder")
    if os.path.lexists(target):
        raise StoreExistsError(f"{target}: already exists; choose a new folder")
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
                raise StoreExistsError(f"{target}: was created meanwhile; choose a new folder")
    finally:
        answers.close()
    return export.made(str(user_paths.as_path(folder)))


class _Export:
    def __init__(self, answers: Answers, built: AnyPath) -> None:
        self.built = built
        self._answers = answers
        self._sizes: dict[str, int] = {}
        self._episodes = self._exported = 0

    def made(self, path: str) -> ExportedView:
        n_bytes = sum(self._sizes.values())
        return ExportedView(path, len(self._sizes), n_bytes, self._episodes, self._exported)

    def run(self, frames: int, episode: int | None) -> None:
        answers = self._answers
        wanted = None
        if episode is not None:
            wanted = whole_number("episode", episode, None)
            answers.start = {"store": 0, "episode": first_id(answers, wanted)}
        about = json.loads(answers.about().body)
        for number, viewed in enumerate(answers.stores):
            error = about["stores"][number]["head"]["error"]
            if error is not None:
                raise MmreplayError(error)
            head = about["stores"][number]["head"]
            if head["state"] == "live":
                head["state"] = "copied while it was written"
            # Listed once: a live store grows meanwhile.
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
        """Write an episode's rows; False, without a file of it, if it is evicted meanwhile."""
        first, length = int(episode["id"]), int(episode["length"])
        folder = f"data/{number}/{about['head']['version']}/episode/{first}/"
        try:
            self._rows(number, about, folder, first, length)
        except (GoneError, InvalidIdError):
            durable_writes.remove_tree(self.built / folder)
            left = {name: n for name, n in self._sizes.items() if not name.startswith(folder)}
            self._sizes = left
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
                self._write(f"{folder}rows/{column.number}/{start}-{stop}.bin", answer.body)
        settings = Settings(about["stack"], padding=about["padding"])
        named = f"{settings.stack}/{settings.n_step}/{settings.gamma}/{settings.padding}"
        for start, stop in _blocks(length, FRAME_ROWS):
            found = answers.transitions(number, version, first, start, stop, settings)
            self._write(f"{folder}transitions/{named}/{start}-{stop}.bin", found.body)

    def _write(self, name: str, body: bytes) -> None:
        path = self.built / name
        durable_writes.make_directory(path.parent)
        durable_writes.write_new(path, body)
        self._sizes[name] = len(body)


def _blocks(n_rows: int, block: int) -> list[tuple[int, int]]:
    return [(start, min(start + block, n_rows)) for start in range(0, n_rows, block)]


def evenly_chosen(lengths: Ids, most: int) -> Ids:
    """Indices of as many episodes at even distances as have at most `most` frames together."""
    n = len(lengths)
    fits = bisect.bisect_right(range(n + 1), most, key=lambda k: lengths[_spread(n, k)].sum())
    return _spread(n, fits - 1)


def _spread(n: int, k: int) -> Ids:
    out: Ids = ((np.arange(k) * 2 + 1) * n // max(2 * k, 1)).astype(np.int64)
    return out
