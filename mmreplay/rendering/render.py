"""`render`: draw an episode as a film, GIF or MP4, or as a contact sheet.

Invariant: a GIF shows exactly what was drawn, as long as a frame changes to at most 255 colours.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.arguments import whole_number, whole_number_or_none
from mmreplay.errors import MissingExtraError
from mmreplay.reading.info import shared_metadata
from mmreplay.reading.store import open_store
from mmreplay.rendering.episode import Episode, Moment
from mmreplay.rendering.new_file import checked_path, new_file
from mmreplay.system.disk_errors import writing

try:
    import av
    from PIL import GifImagePlugin
    from PIL import Image as Pictures

    from mmreplay.rendering.canvas import Canvas, FilmCanvas, chosen_steps, draw_sheet
except ImportError as error:
    raise MissingExtraError(
        'films need PyAV and Pillow: pip install "mmreplay[pictures]"'
    ) from error

MOST_FPS = {".gif": 50, ".mp4": 100}
"""By suffix. Browsers show a GIF with shorter pauses between frames at 10 frames per second."""
SUFFIXES = (*MOST_FPS, ".png")
MOST_SCALE = 64

_LAST = 100  # how long a GIF shows its last frame, in hundredths of a second

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
        EmptyBufferError, InvalidIdError: there is no episode yet, or it was evicted meanwhile.
        StoreNotFoundError: no store there, or no directory above `out`.
        StoreExistsError: `out` exists.
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
                name = (shared_metadata(store.live.readers) or {}).get("id")
                title = (
                    f"{name if isinstance(name, str) else store.path.name}   episode "
                    f"{shown.number:,}   {shown.length:,} steps   return {shown.total:.6g}"
                )
                sheet = draw_sheet(shown, title, scale, numbers, moments)
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


def write_film(path: Path, frames: Iterable[Canvas], size: tuple[int, int], fps: int) -> None:
    """Write a film of frames of this (width, height), both even; the suffix is the format."""
    with writing("writing a film", path):
        if path.suffix.lower() == ".gif":
            _write_gif(path, frames, fps)
        else:
            _write_mp4(path, frames, size, fps)


def _write_mp4(path: Path, frames: Iterable[Canvas], size: tuple[int, int], fps: int) -> None:
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        quality = {"crf": "16", "preset": "veryfast"}
        stream: Any = container.add_stream("libx264", rate=fps, options=quality)
        stream.pix_fmt = "yuv420p"  # the only one that all players know
        stream.width, stream.height = size
        for canvas in frames:
            frame = av.VideoFrame.from_ndarray(np.asarray(canvas), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def _write_gif(path: Path, frames: Iterable[Canvas], fps: int) -> None:
    """Each frame has a palette of its own, and only what differs from the frame before.

    FFmpeg's encoder makes files six times as large, and Pillow's `save` keeps all frames in memory.
    """
    before = None
    with path.open("wb") as file:
        pairs = itertools.pairwise(itertools.chain(frames, [None]))
        for number, (canvas, following) in enumerate(pairs):
            image = np.asarray(canvas)
            part, corner = _changed(before, image)
            if before is None:
                file.writelines(GifImagePlugin.getheader(part, None, {"loop": 0})[0])
            pause = round((number + 1) * 100 / fps) - round(number * 100 / fps)
            settings: Any = {
                "duration": 10 * (_LAST if following is None else pause),
                "disposal": 1,
                "transparency": 0,
                "include_color_table": True,
            }
            file.writelines(GifImagePlugin.getdata(part, corner, **settings))
            before = image
        file.write(b";")


def _changed(
    before: npt.NDArray[np.uint8] | None, image: npt.NDArray[np.uint8]
) -> tuple[Canvas, tuple[int, int]]:
    """The smallest rectangle around all changed pixels, with colour 0 elsewhere; its (x, y)."""
    changed = np.ones(image.shape[:2], np.bool_) if before is None else (image != before).any(-1)
    changed[0, 0] |= not changed.any()  # a frame has at least one pixel
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    inside = slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)
    changed = changed[inside]
    # The median cut is exact for up to 255 colours.
    pixels = Pictures.fromarray(image[inside][changed][None])
    reduced = pixels.quantize(255, Pictures.Quantize.MEDIANCUT, dither=Pictures.Dither.NONE)
    indices = np.zeros(changed.shape, np.uint8)
    indices[changed] = np.asarray(reduced)[0] + 1
    part = Pictures.fromarray(indices)
    part.putpalette([0, 0, 0, *(reduced.getpalette() or [])][: 3 * 256])
    return part, (int(columns[0]), int(rows[0]))
