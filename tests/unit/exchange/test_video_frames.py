"""Frames of videos: those of the times that were asked for, in whatever order."""

from contextlib import ExitStack

import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.images import VideoFrames

av = pytest.importorskip("av")

FPS = 10


def level_of(number, t):
    """Of a frame: the codec changes it less than it differs from that of its neighbours."""
    return 20 + 10 * (t % 20) + 5 * number


@pytest.fixture
def films(tmp_path):
    """Two videos of flat frames, each of another gray."""
    paths = []
    for number, n in enumerate((60, 20)):
        path = tmp_path / f"{number}.mp4"
        with av.open(str(path), "w") as file:
            stream = file.add_stream("mpeg4", rate=FPS)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for t in range(n):
                gray = np.full((48, 64, 3), level_of(number, t), np.uint8)
                frame = av.VideoFrame.from_ndarray(gray)
                file.mux(stream.encode(frame))
            file.mux(stream.encode())
        paths.append(path)
    return paths


def level(frame):
    assert frame.shape == (48, 64, 3)
    return int(frame[20, 20, 0])


def test_frames_in_order_over_two_files_and_back(films):
    with ExitStack() as stack:
        frames = VideoFrames((48, 64, 3), FPS, stack)
        for number, t in [
            (0, 0),
            (0, 1),
            (0, 1),
            (0, 5),
            (1, 0),
            (1, 19),
            (1, 2),
            (0, 59),
            (0, 30),
        ]:
            found = level(frames.at(films[number], t / FPS + 0.01))
            assert abs(found - level_of(number, t)) <= 4, (number, t)


def test_a_time_without_a_frame_is_refused(films):
    with ExitStack() as stack:
        frames = VideoFrames((48, 64, 3), FPS, stack)
        with pytest.raises(FormatError, match=r"expected a frame at 6.000 s, found its end"):
            frames.at(films[0], 6.0)
        other = VideoFrames((48, 60, 3), FPS, stack)
        with pytest.raises(FormatError, match=r"expected frames of \(48, 60, 3\), found \(48, 64"):
            other.at(films[0], 0.0)


def test_a_video_that_is_none_or_is_missing_is_refused(films, tmp_path):
    (tmp_path / "none.mp4").write_bytes(b"no video" * 100)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(films[0].read_bytes()[:2000])
    with ExitStack() as stack:
        frames = VideoFrames((48, 64, 3), FPS, stack)
        for path in (tmp_path / "none.mp4", cut, tmp_path / "missing.mp4"):
            with pytest.raises(FormatError, match=f"{path.name}: cannot be decoded"):
                frames.at(path, 0.0)
        assert level(frames.at(films[0], 0.0)) >= 16


def test_other_containers_codecs_and_sizes_are_refused_before_anything_is_decoded(films, tmp_path):
    playlist = tmp_path / "list.mp4"
    playlist.write_text(f"ffconcat version 1.0\nfile {films[0].name}\n")
    matroska, motion_jpeg = tmp_path / "x.mkv", tmp_path / "x.mp4"
    for path, codec in ((matroska, "mpeg4"), (motion_jpeg, "mjpeg")):
        with av.open(str(path), "w") as file:
            stream = file.add_stream(codec, rate=FPS)
            stream.width, stream.height, stream.pix_fmt = (
                64,
                48,
                "yuvj420p" if codec == "mjpeg" else "yuv420p",
            )
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8))))
            file.mux(stream.encode())
    with ExitStack() as stack:
        frames = VideoFrames((48, 64, 3), FPS, stack)
        for path, message in (
            (playlist, "cannot be decoded"),
            (matroska, "cannot be decoded"),
            (motion_jpeg, "expected a video in one of h264, .*, found mjpeg"),
        ):
            with pytest.raises(FormatError, match=message):
                frames.at(path, 0.0)


def test_a_video_of_12_bits_is_refused(tmp_path):
    path = tmp_path / "depth.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx265", rate=FPS, options={"x265-params": "log-level=none"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "gray12le"
        frame = av.VideoFrame.from_ndarray(np.full((48, 64), 900, np.uint16), format="gray12le")
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    with ExitStack() as stack, pytest.raises(FormatError, match="found gray12le"):
        VideoFrames((48, 64, 1), FPS, stack).at(path, 0.0)
