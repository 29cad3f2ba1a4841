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
from mmreplay.errors import InvalidIdError, MmreplayError, StoreExistsError
from mmreplay.ids import Ids
from mmreplay.storage.lane_metadata import path_of_new_store
from mmreplay.system import durable_writes
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
    that are evicted meanwhile. Browsers need a web server to load it, but not mmreplay.

    Args:
        paths: one store, or several or a glob pattern, which are compared.
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
    episode = None if episode is None else whole_number("episode", episode, None)
    target = path_of_new_store(folder, "folder")
    answers = Answers(listed(paths), is_static=True)
    try:
        with staging_directory(target.absolute()) as staged:
            built = staged / target.name
            counts = _write_page(built, answers, frames, episode)
            durable_writes.sync_tree(staged)
            if not durable_writes.replace_directory(built, staged.with_name(target.name)):
                raise StoreExistsError(f"{target}: was created meanwhile; choose a new folder")
    finally:
        answers.close()
    sizes = [one.stat().st_size for one in target.rglob("*") if one.is_file()]
    return ExportedView(str(target), len(sizes), sum(sizes), *counts)


def _write_page(
    built: AnyPath, answers: Answers, frames: int, episode: int | None
) -> tuple[int, int]:
    """Write all files; the numbers of episodes, and of those with frames."""
    if episode is not None:
        answers.start = {"store": 0, "episode": first_id(answers, episode)}
    document = json.loads(answers.about().body)
    n_episodes = n_exported = 0
    for number, about in enumerate(document["stores"]):
        if about["head"]["error"] is not None:
            raise MmreplayError(about["head"]["error"])
        if about["head"]["state"] == "live":
            about["head"]["state"] = "copied while it was written"
        # Listed once: a live store grows meanwhile.
        store = answers.stores[number].store
        kept = kept_episodes(store)
        episodes, _ = kept
        chosen = evenly_chosen(episodes["length"] + 1, frames)
        if episode is not None and number == 0:
            first = int(answers.start["episode"])
            chosen = np.union1d(chosen, np.flatnonzero(episodes["id"] == first))
        _write(built, f"data/{number}/episodes.bin", episode_table(store, kept))
        about["exported"] = [
            str(int(one["id"]))
            for one in episodes[chosen]
            if _write_episode(built, answers, number, about, one)
        ]
        n_episodes += len(episodes)
        n_exported += len(about["exported"])
    _write(built, "data/distributions.json", answers.distributions().body)
    _write(built, "data/stores.json", json.dumps(document).encode())
    for name, file in page_files().items():
        _write(built, name if name == "index.html" else f"static/{name}", file.body)
    return n_episodes, n_exported


def _write_episode(
    built: AnyPath, answers: Answers, number: int, about: dict[str, Any], episode: Any
) -> bool:
    """Write an episode's rows; False, without a file of it, if it is evicted meanwhile."""
    first, length = int(episode["id"]), int(episode["length"])
    at = number, about["head"]["version"], first
    folder = "data/{}/{}/episode/{}/".format(*at)
    settings = Settings(about["stack"], padding=about["padding"])
    named = f"{settings.stack}/{settings.n_step}/{settings.gamma}/{settings.padding}"
    try:
        for column in shown_columns(answers.stores[number].store.schema):
            if column.kind == "priority" and not about["has_priorities"]:
                continue
            for start, stop in _blocks(length + (column.kind == "frame"), column.block):
                rows = answers.rows(*at, column.number, start, stop)
                _write(built, f"{folder}rows/{column.number}/{start}-{stop}.bin", rows.body)
        for start, stop in _blocks(length, FRAME_ROWS):
            found = answers.transitions(*at, start, stop, settings)
            _write(built, f"{folder}transitions/{named}/{start}-{stop}.bin", found.body)
    except (GoneError, InvalidIdError):
        durable_writes.remove_tree(built / folder)
        return False
    return True


def _write(built: AnyPath, name: str, body: bytes) -> None:
    path = built / name
    durable_writes.make_directory(path.parent)
    durable_writes.write_new(path, body)


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
