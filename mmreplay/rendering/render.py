"""`render`: draw an episode as a film or as a contact sheet."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mmreplay.arguments import whole_number, whole_number_or_none
from mmreplay.reading.info import shared_metadata
from mmreplay.reading.store import Store, open_store
from mmreplay.rendering.canvas import FilmCanvas, chosen_steps, draw_sheet
from mmreplay.rendering.episode import Episode, Moment
from mmreplay.rendering.film import MOST_FPS, write_film
from mmreplay.rendering.new_file import checked_path, new_file
from mmreplay.system.disk_errors import writing

SUFFIXES = (*MOST_FPS, ".png")
MOST_SCALE = 64

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class Rendered:
    """A picture or film that was made.

    Attributes:
        path: the file.
        episode: its number in `Store.episodes`.
        steps: of the episode.
        total: its return, without discount.
        end: ``terminated``, ``truncated`` or ``open``: still running.
        frames: in the file, of the T + 1 of the episode.
        size: (width, height) in pixels.
    """

    path: Path
    episode: int
    steps: int
    total: float
    end: str
    frames: int
    size: tuple[int, int]


def render(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    episode: int = -1,
    *,
    key: str | None = None,
    fps: int = 30,
    scale: int | None = None,
    progress: Progress | None = None,
) -> Rendered:
    """Draw one episode of a store: a film (.gif, .mp4), or a contact sheet (.png).

    A film has all frames, with step, action, reward and a timeline below. A contact sheet has up to
    48 of them: the first, the final one, and between them those with the largest rewards.

    Args:
        path: the store, closed or live.
        out: the file to make; its name ends in .gif, .mp4 or .png.
        episode: its number in `Store.episodes`; a negative one counts from the end.
        key: which image to draw, if an observation has several.
        fps: frames per second of a film: at most 100, of a GIF 50.
        scale: enlarge the frames by this factor; None for what fits a screen.
        progress: called with frames done and frames in all.

    Raises:
        SchemaError: no such episode, key, format or setting; its frames are not images, or too
            large at this scale.
        EmptyBufferError: there is no episode yet.
        StoreNotFoundError: no store there, or no directory above `out`.
        StoreExistsError: `out` exists.
        InvalidIdError: the episode was evicted meanwhile.
        CorruptStoreError: frames that cannot be read.
        DiskFullError, FailedStoreError: it cannot be written. No error leaves a file behind.
    """
    target = checked_path(out, SUFFIXES)
    suffix = target.suffix.lower()
    fps = whole_number("fps", fps, 1, MOST_FPS.get(suffix))
    scale = whole_number_or_none("scale", scale, 1, MOST_SCALE)
    with open_store(path) as store:
        shown = Episode(store, episode, key)
        is_film = suffix in MOST_FPS
        numbers = range(shown.length + 1) if is_film else chosen_steps(shown.reward)
        moments = _counted(shown.moments(numbers), len(numbers), progress)
        with new_file(target) as staged:
            if is_film:
                film = FilmCanvas(shown, scale)
                size = film.size
                write_film(staged, map(film.draw, moments), size, fps)
            else:
                sheet = draw_sheet(shown, _title(store, shown), scale, numbers, moments)
                size = sheet.size
                with writing("writing a picture", staged):
                    sheet.save(staged, "PNG")
    n_frames = len(numbers)
    return Rendered(target, shown.number, shown.length, shown.total, shown.end, n_frames, size)


def _counted(moments: Iterator[Moment], total: int, progress: Progress | None) -> Iterator[Moment]:
    for done, moment in enumerate(moments, start=1):
        yield moment
        if progress is not None:
            progress(done, total)


def _title(store: Store, shown: Episode) -> str:
    env: Any = shared_metadata(store.live.readers) or {}
    name = env.get("id")
    return (
        f"{name if isinstance(name, str) else store.path.name}   episode {shown.number:,}   "
        f"{shown.length:,} steps   return {shown.total:.6g}"
    )
