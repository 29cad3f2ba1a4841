"""Images and videos of foreign files as rows of uint8.

Invariant: an image or video of another size is refused before it is decoded, and never scaled; only
Pillow's decoders of PNG and JPEG are used, as others start programs. A frame is the one at the
requested time, or there is an error.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import ROW_BYTES, checked_name
from mmreplay.ids import Array

_FORMATS = ("PNG", "JPEG")


def decoded(images: Iterable[bytes | None], shape: tuple[int, ...], name: str) -> Array:
    """(n, *shape) uint8 from the bytes of n files; raises FormatError for another shape."""
    pillow = need("PIL.Image", "pictures")
    bombs = pillow.DecompressionBombError, pillow.DecompressionBombWarning
    rows = []
    for data in images:
        if data is None:
            raise FormatError(f"{name}: an image is missing")
        try:
            with pillow.open(io.BytesIO(data), formats=_FORMATS) as image:
                if (image.height, image.width) != shape[:2]:
                    raise _unlike(name, shape, f"one of {image.width} x {image.height}")
                rows.append(np.asarray(image.convert("RGB") if image.mode == "P" else image))
        except (OSError, SyntaxError, ValueError, *bombs) as error:
            raise FormatError(f"{name}: not an image in PNG or JPEG: {error!s:.200}") from error
        found = rows[-1]
        if found.dtype != np.uint8 or found.size != math.prod(shape):
            raise _unlike(name, shape, f"{found.dtype} {found.shape}")
    return np.stack(rows).reshape(-1, *shape) if rows else np.zeros((0, *shape), np.uint8)


def _unlike(name: str, shape: tuple[int, ...], found: str) -> FormatError:
    return FormatError(f"{name}: expected images of shape {shape} in uint8, found {found}")


_CONTAINER = "mp4"
_CODECS = ("h264", "hevc", "libdav1d", "av1", "mpeg4")


class VideoFrames:
    """Frames (h, w, c) uint8; `stack` closes the videos."""

    def __init__(self, shape: tuple[int, ...], fps: float, stack: ExitStack) -> None:
        self._shape, self._half = shape, 0.5 / fps
        self._kind = "gray" if shape[-1] == 1 else "rgb24"
        self._path: Path | None = None
        self._file: Any = None
        self._frames: Iterator[Any] = iter(())
        self._ahead: Any = None
        stack.callback(self._close)

    def _close(self) -> None:
        # The iterator holds PyAV's decoder, and frames hold its buffers.
        self._frames, self._ahead = iter(()), None
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def at(self, path: Path, seconds: float) -> Array:
        """The frame of a video at a time; raises FormatError if the video has none there."""
        error_of_av = need("av", "pictures").error.FFmpegError
        try:
            return self._at(path, seconds)
        except (error_of_av, FileNotFoundError) as error:
            raise FormatError(f"{path}: cannot be decoded: {error!s:.200}") from error

    def _at(self, path: Path, seconds: float) -> Array:
        is_behind = self._ahead is None or seconds < self._ahead.time - self._half
        if path != self._path or is_behind:
            self._open(path)
        while self._ahead is not None and self._ahead.time < seconds - self._half:
            self._ahead = next(self._frames, None)
        if self._ahead is None or self._ahead.time > seconds + self._half:
            raise FormatError(
                f"{path}: expected a frame at {seconds:.3f} s, found "
                f"{'its end' if self._ahead is None else f'the next at {self._ahead.time:.3f} s'}"
            )
        rows: Array = self._ahead.to_ndarray(format=self._kind).reshape(
            self._ahead.height, self._ahead.width, -1
        )
        if rows.shape != self._shape:
            raise FormatError(f"{path}: expected frames of {self._shape}, found {rows.shape}")
        return np.ascontiguousarray(rows)

    def _open(self, path: Path) -> None:
        self._close()
        # Without a format FFmpeg tries all of them, including playlists of other files.
        self._file = need("av", "pictures").open(checked_name(path), format=_CONTAINER)
        self._path = path
        self._check(self._file.streams.video[0])
        self._frames = self._file.decode(video=0)
        self._ahead = next(self._frames, None)

    def _check(self, stream: Any) -> None:
        """Check the codec and the size of frames before anything is decoded."""
        about, (height, width) = stream.codec_context, self._shape[:2]
        if about.name not in _CODECS:
            raise FormatError(
                f"{self._path}: expected a video in one of {', '.join(_CODECS)}, found {about.name}"
            )
        if str(about.pix_fmt).startswith("gray") and about.pix_fmt != "gray":
            raise FormatError(
                f"{self._path}: expected 8 bits per pixel, found {about.pix_fmt}; import without "
                f"this feature: leave_out=[...]"
            )
        if (about.height, about.width) != (height, width):
            raise FormatError(
                f"{self._path}: expected frames of {self._shape}, found "
                f"{(about.height, about.width)}"
            )
        # A stream may change its size later.
        about.options = {"max_pixels": str(ROW_BYTES)}
        stream.thread_type = "AUTO"
