"""Films: GIF and MP4, written a frame at a time.

Invariant: a GIF shows exactly what was drawn, as long as a frame changes to at most 255 colours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MissingExtraError
from mmreplay.system.disk_errors import writing
from mmreplay.system.limits import ReachedLimitError

try:
    import av
    from PIL import GifImagePlugin
    from PIL import Image as Pictures
except ImportError as error:
    raise MissingExtraError(
        'films need PyAV and Pillow: pip install "mmreplay[pictures]"'
    ) from error

Drawn = npt.NDArray[np.uint8]
"""(H, W, 3)."""

MOST_FPS = {".gif": 50, ".mp4": 100}
"""By suffix: of a shorter pause between two frames of a GIF, browsers make a tenth of a second."""

MOST_SIDE = {".gif": 65_534, ".mp4": 16_384}
"""Pixels, by suffix: even ones; of a GIF two bytes, and of MP4 what its encoder takes."""

_COLOURS = 255
"""Of a GIF's 256 one is for what stays."""
_LAST_S = 1
"""How long a GIF shows its last frame."""


class Film(Protocol):
    """A film that is being written; a context manager that finishes it."""

    def add(self, image: Drawn) -> None:
        """The next frame."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None: ...


def open_film(path: Path, suffix: str, size: tuple[int, int], fps: int) -> Film:
    """Begin a film of frames of this (width, height), which are even; `suffix` says of what kind.

    Its methods raise DiskFullError and FailedStoreError.
    """
    return _Gif(path, size, fps) if suffix == ".gif" else _Mp4(path, size, fps)


class _Mp4:
    def __init__(self, path: Path, size: tuple[int, int], fps: int) -> None:
        self._path, self._fps, self._count = path, fps, 0
        with _encoding(path):
            options = {"movflags": "faststart"}
            self._container = av.open(str(path), "w", format="mp4", options=options)
            quality = {"crf": "16", "preset": "veryfast"}
            self._stream: Any = self._container.add_stream("libx264", rate=fps, options=quality)
            self._stream.pix_fmt = "yuv420p"  # players know no other
            self._stream.width, self._stream.height = size

    def add(self, image: Drawn) -> None:
        with _encoding(self._path):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = self._count, Fraction(1, self._fps)
        self._count += 1
        self._encode(frame)

    def _encode(self, frame: av.VideoFrame | None) -> None:
        with _encoding(self._path):
            self._container.mux(self._stream.encode(frame))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._encode(None)
        finally:
            with _encoding(self._path):
                self._container.close()


@contextlib.contextmanager
def _encoding(path: Path) -> Iterator[None]:
    """As `writing`; that libx264 gets no memory for a buffer, or a thread, as ReachedLimitError."""
    with writing("writing a film", path):
        try:
            yield
        except (MemoryError, av.BlockingIOError, av.ExternalError) as error:
            raise ReachedLimitError(
                f"{path}: the encoder gets no more memory or threads, by a limit of this process, "
                f"its user or container (`ulimit -v`, `ulimit -u`); nothing was changed: raise "
                f"that limit and call again"
            ) from error


class _Gif:
    """Each frame has the colours that it changes to, and leaves out what stays.

    Pillow's own way to save a GIF keeps all frames in memory until the last.
    """

    def __init__(self, path: Path, size: tuple[int, int], fps: int) -> None:
        self._path, self._fps, self._count = path, fps, 0
        self._shown: Drawn | None = None
        self._waiting: tuple[Pictures.Image, tuple[int, int]] | None = None
        with writing("writing a film", path):
            self._file = path.open("xb")
        header, _ = GifImagePlugin.getheader(
            _indexed(np.zeros(size[::-1], np.uint8), []), None, {"loop": 0}
        )
        self._write(header)

    def add(self, image: Drawn) -> None:
        self._put_waiting(self._time(self._count) - self._time(self._count - 1))
        self._waiting = _changed(self._shown, image)
        self._shown = image
        self._count += 1

    def _time(self, number: int) -> int:
        """When a frame is shown, in hundredths of a second."""
        return round(number * 100 / self._fps)

    def _put_waiting(self, hundredths: int) -> None:
        """Write the newest frame, now that it is known how long it is shown."""
        if self._waiting is not None:
            image, place = self._waiting
            settings = {"duration": hundredths * 10, "disposal": 1, "transparency": 0}
            self._write(GifImagePlugin.getdata(image, place, include_color_table=True, **settings))

    def _write(self, parts: list[bytes]) -> None:
        with writing("writing a film", self._path):
            self._file.write(b"".join(parts))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._put_waiting(_LAST_S * 100)
                self._write([b";"])
        finally:
            with writing("writing a film", self._path):
                self._file.close()


def _changed(before: Drawn | None, image: Drawn) -> tuple[Pictures.Image, tuple[int, int]]:
    """The smallest rectangle with all pixels that are not as before, and its place (x, y)."""
    changed = np.ones(image.shape[:2], np.bool_) if before is None else (image != before).any(-1)
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    if not rows.size:  # a frame of one pixel, which stays
        return _indexed(np.zeros((1, 1), np.uint8), []), (0, 0)
    y, x = int(rows[0]), int(columns[0])
    inside = slice(y, int(rows[-1]) + 1), slice(x, int(columns[-1]) + 1)
    changed, image = changed[inside], image[inside]
    pixels = image[changed]
    packed = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
    found, places = np.unique(packed, return_inverse=True)
    colours = (found[:, None] >> np.array([16, 8, 0]) & 255).ravel().tolist()
    if len(found) > _COLOURS:
        reduced = Pictures.fromarray(pixels[None]).quantize(_COLOURS, dither=Pictures.Dither.NONE)
        places, colours = np.asarray(reduced)[0], reduced.getpalette() or []
    indices = np.zeros(changed.shape, np.uint8)
    indices[changed] = places + 1
    return _indexed(indices, colours), (x, y)


def _indexed(indices: npt.NDArray[np.uint8], colours: list[int]) -> Pictures.Image:
    """An image of the colours with these numbers, from 1; 0 is what stays."""
    image = Pictures.fromarray(indices)
    image.putpalette([0, 0, 0, *colours][: 3 * (_COLOURS + 1)])
    return image
