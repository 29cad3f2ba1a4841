"""Frames of videos, decoded in the order of time.

Invariant: each frame is the one at the requested time, or there is an error; one video is open at a
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import ROW_BYTES, checked_name
from mmreplay.ids import Array

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
