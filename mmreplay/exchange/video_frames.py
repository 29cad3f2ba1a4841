"""Frames of videos in the order of time, decoded as they are asked for.

Invariant: each frame is the one that is shown at the time that was asked for, or there is an error;
one video is open at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mmreplay.errors import FormatError
from mmreplay.exchange.fields import need
from mmreplay.exchange.source_files import ROW_BYTES
from mmreplay.ids import Array

__all__ = ["VideoFrames"]

_CONTAINER = "mp4"
_CODECS = ("h264", "hevc", "libdav1d", "av1", "mpeg4")

_FAR_S = 2.0
"""What lies further ahead is looked for, and nearer ones are decoded up to there."""


class VideoFrames:
    """Frames (h, w, c) uint8; a context manager's inside.

    Args:
        shape: of a frame.
        fps: frames a second.
        stack: closes the videos.
    """

    def __init__(self, shape: tuple[int, ...], fps: float, stack: ExitStack) -> None:
        self._shape, self._half = shape, 0.5 / fps
        self._kind = "gray" if shape[-1] == 1 else "rgb24"
        self._path: Path | None = None
        self._file: Any = None
        self._frames: Iterator[Any] = iter(())
        self._ahead: Any = None
        stack.callback(self._close)

    def _close(self) -> None:
        # PyAV's iterator holds the decoder, and frames hold its buffers.
        self._frames, self._ahead = iter(()), None
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def at(self, path: Path, seconds: float) -> Array:
        """The frame of a video at that time; raises FormatError if it has none there."""
        error_of_av = need("av", "pictures").error.FFmpegError
        try:
            return self._at(path, seconds)
        except error_of_av as error:
            raise FormatError(f"{path}: cannot be decoded: {error!s:.200}") from error

    def _at(self, path: Path, seconds: float) -> Array:
        if path != self._path:
            self._close()
            # Without a format FFmpeg tries all of them, playlists of other files among them.
            self._file = need("av", "pictures").open(str(path), format=_CONTAINER)
            self._path = path
            self._check(self._file.streams.video[0])
            self._frames = self._file.decode(video=0)
            self._ahead = next(self._frames, None)
        if not self._is_near(seconds):
            stream = self._file.streams.video[0]
            self._file.seek(max(int(seconds / stream.time_base), 0), stream=stream)
            self._frames = self._file.decode(video=0)
            self._ahead = next(self._frames, None)
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

    def _check(self, stream: Any) -> None:
        """Before anything is decoded: the codec, and the size of frames."""
        about, (height, width) = stream.codec_context, self._shape[:2]
        if about.name not in _CODECS:
            raise FormatError(
                f"{self._path}: expected a video in one of {', '.join(_CODECS)}, found {about.name}"
            )
        if (about.height, about.width) != (height, width):
            raise FormatError(
                f"{self._path}: expected frames of {self._shape}, found "
                f"{(about.height, about.width)}"
            )
        # A stream may say in its middle that it has another size from there on.
        about.options = {"max_pixels": str(ROW_BYTES)}
        # With one thread a frame of 84x84 takes longer than with as many as there are cores.
        stream.thread_type = "AUTO"

    def _is_near(self, seconds: float) -> bool:
        """Whether decoding goes on to there, and not back."""
        found = None if self._ahead is None else self._ahead.time
        return found is not None and found - self._half <= seconds <= found + _FAR_S
