"""Write films, GIF and MP4, one frame at a time.

Invariant: a GIF shows exactly what was drawn, as long as a frame changes to at most 255 colours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MissingExtraError
from mmreplay.rendering.canvas import Canvas
from mmreplay.system.disk_errors import writing

try:
    import av
    from PIL import GifImagePlugin
    from PIL import Image as Pictures
except ImportError as error:
    raise MissingExtraError(
        'films need PyAV and Pillow: pip install "mmreplay[pictures]"'
    ) from error

MOST_FPS = {".gif": 50, ".mp4": 100}
"""By suffix. Browsers show a GIF with shorter pauses between frames at 10 frames per second."""

_LAST = 100
"""How long a GIF shows its last frame, in hundredths of a second."""


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
