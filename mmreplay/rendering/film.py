"""Films: GIF and MP4, written a frame at a time.

Invariant: a GIF shows exactly what was drawn, as long as a frame changes to at most 255 colours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.errors import FailedStoreError, MissingExtraError
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
"""By suffix: of a shorter pause between two frames of a GIF, browsers make a tenth of a second."""

_COLOURS = 255
"""Of a GIF's 256 one is for what stays."""
_LAST = 100
"""How long a GIF shows its last frame, in hundredths of a second."""

Pixels = npt.NDArray[np.uint8]


@contextlib.contextmanager
def open_film(
    path: Path, suffix: str, size: tuple[int, int], fps: int
) -> Iterator[Callable[[Canvas], None]]:
    """Write a film of frames of this (width, height), which are even; `suffix` says of what kind.

    Yields:
        A function that adds a frame.

    Raises:
        DiskFullError, FailedStoreError: it cannot be written.
    """
    with (_gif if suffix == ".gif" else _mp4)(path, size, fps) as add:
        yield add


@contextlib.contextmanager
def _mp4(path: Path, size: tuple[int, int], fps: int) -> Iterator[Callable[[Canvas], None]]:
    count = 0

    def add(canvas: Canvas) -> None:
        nonlocal count
        with _encoding(path):
            frame = av.VideoFrame.from_ndarray(np.asarray(canvas), format="rgb24")
            frame.pts, frame.time_base = count, Fraction(1, fps)
            count += 1
            container.mux(stream.encode(frame))

    with _encoding(path):
        container = av.open(str(path), "w", format="mp4", options={"movflags": "faststart"})
        quality = {"crf": "16", "preset": "veryfast"}
        stream: Any = container.add_stream("libx264", rate=fps, options=quality)
    stream.pix_fmt = "yuv420p"  # players know no other
    stream.width, stream.height = size
    try:
        yield add
        with _encoding(path):
            container.mux(stream.encode(None))
    finally:
        with _encoding(path):
            container.close()


@contextlib.contextmanager
def _encoding(path: Path) -> Iterator[None]:
    with writing("writing a film", path):
        try:
            yield
        except (MemoryError, av.BlockingIOError, av.ExternalError) as error:
            raise FailedStoreError(
                f"{path}: the encoder failed, which needs more memory or threads (`ulimit -v`, "
                f"`ulimit -u`); nothing was changed: {error}"
            ) from error


@contextlib.contextmanager
def _gif(path: Path, size: tuple[int, int], fps: int) -> Iterator[Callable[[Canvas], None]]:
    """Each frame has the colours that it changes to, and leaves out what stays.

    FFmpeg's encoder makes files six times as large, and Pillow's `save` keeps all frames in memory.
    """
    count = 0
    shown: Pixels | None = None
    waiting: tuple[Canvas, tuple[int, int]] | None = None

    def put(*parts: bytes) -> None:
        with writing("writing a film", path):
            file.write(b"".join(parts))

    def put_waiting(hundredths: int) -> None:
        """Write the newest frame, now that it is known how long it is shown."""
        if waiting is not None:
            settings: Any = {"duration": 10 * hundredths, "disposal": 1, "transparency": 0}
            put(*GifImagePlugin.getdata(*waiting, include_color_table=True, **settings))

    def add(canvas: Canvas) -> None:
        nonlocal count, shown, waiting
        put_waiting(round(count * 100 / fps) - round((count - 1) * 100 / fps))
        image = np.asarray(canvas)
        waiting, shown, count = _changed(shown, image), image, count + 1

    with writing("writing a film", path):
        file = path.open("xb")
    with file:
        head = _indexed(np.zeros(size[::-1], np.uint8), [])
        put(*GifImagePlugin.getheader(head, None, {"loop": 0})[0])
        yield add
        put_waiting(_LAST)
        put(b";")
        with writing("writing a film", path):
            file.flush()


def _changed(before: Pixels | None, image: Pixels) -> tuple[Canvas, tuple[int, int]]:
    """The smallest rectangle with all pixels that are not as before, and its place (x, y)."""
    changed = np.ones(image.shape[:2], np.bool_) if before is None else (image != before).any(-1)
    changed[0, 0] |= not changed.any()  # a frame has at least a pixel
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    y, x = int(rows[0]), int(columns[0])
    inside = slice(y, int(rows[-1]) + 1), slice(x, int(columns[-1]) + 1)
    changed = changed[inside]
    pixels = image[inside][changed]
    packed = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
    found, places = np.unique(packed, return_inverse=True)
    colours = (found[:, None] >> np.array([16, 8, 0]) & 255).ravel().tolist()
    if len(found) > _COLOURS:
        reduced = Pictures.fromarray(pixels[None]).quantize(_COLOURS, dither=Pictures.Dither.NONE)
        places, colours = np.asarray(reduced)[0], reduced.getpalette() or []
    indices = np.zeros(changed.shape, np.uint8)
    indices[changed] = places + 1
    return _indexed(indices, colours), (x, y)


def _indexed(indices: Pixels, colours: list[int]) -> Canvas:
    """An image of the colours with these numbers, from 1; 0 is what stays."""
    image = Pictures.fromarray(indices)
    image.putpalette([0, 0, 0, *colours][: 3 * (_COLOURS + 1)])
    return image
