"""A contact sheet: an episode on one page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mmreplay.pictures.images import factor_for, resized
from mmreplay.rendering.canvas import (
    FAINT,
    MARGIN,
    MOST_PIXELS,
    Canvas,
    blank,
    check_scale,
    end_ink,
    fitting,
    put_frame,
    put_text,
    put_timeline,
    reward_ink,
    reward_text,
)
from mmreplay.rendering.episode import Episode, Moment
from mmreplay.system.disk_errors import writing

MOST_TILES = 48
_COLUMNS = 6
_SIDE = 240
_HEAD, _CAPTION = 56, 22
_LEAST_WIDTH = 360


def chosen_steps(rewards: npt.NDArray[np.floating], most: int = MOST_TILES) -> list[int]:
    """The steps whose frames are shown: first and final, and in even parts the largest reward."""
    length = len(rewards)
    if length < most:
        return [*range(length + 1)]
    size = np.abs(np.nan_to_num(rewards.astype(np.float64), posinf=0, neginf=0))
    edges = np.linspace(1, length, most - 1).astype(np.int64)
    inner = [int(start + size[start:stop].argmax()) for start, stop in itertools.pairwise(edges)]
    return [0, *inner, length]


def sheet_size(width: int, height: int, n: int) -> tuple[int, int]:
    """(width, height) of a sheet of n frames of this size."""
    columns = min(_COLUMNS, n)
    across, down = width + MARGIN, height + _CAPTION
    return max(columns * across + MARGIN, _LEAST_WIDTH), _HEAD + -(-n // columns) * down + MARGIN


def write_sheet(
    path: Path, episode: Episode, title: str, scale: int | None, moments: Iterator[Moment]
) -> tuple[int, int]:
    """Draw it, into a PNG file; returns (width, height).

    Args:
        path: the file.
        episode: what is shown.
        title: its first line.
        scale: how many times as large the frames become, None for what fits a page.
        moments: those of `chosen_steps`, in order.
    """
    numbers = chosen_steps(episode.reward)
    first = next(moments)
    tall, wide = first.image.shape[:2]
    check_scale(
        scale,
        lambda one: sheet_size(wide * one, tall * one, len(numbers)),
        "one page",
        MOST_PIXELS,
    )
    factor = factor_for(first.image.shape, _SIDE) if scale is None else scale
    height, width = resized(first.image, factor).shape[:2]
    columns = min(_COLUMNS, len(numbers))
    across, down = width + MARGIN, height + _CAPTION
    total, whole = sheet_size(width, height, len(numbers))
    canvas = blank(total, whole)
    room = total - 2 * MARGIN
    words = "still running" if episode.end == "open" else episode.end
    used = put_text(canvas, words, total - MARGIN, MARGIN, end_ink(episode.end), anchor="r")
    put_text(canvas, fitting(title, room - used - MARGIN), MARGIN, MARGIN)
    put_timeline(canvas, episode, MARGIN, MARGIN + 22, room, numbers)
    for place, moment in enumerate([first, *moments]):
        row, column = divmod(place, columns)
        x, y = MARGIN + column * across, _HEAD + row * down
        put_frame(canvas, resized(moment.image, factor), x, y)
        _put_caption(canvas, episode, moment.number, x, y + height + 2, width)
    with writing("writing a picture", path), path.open("xb") as file:
        canvas.save(file, "PNG")
    return canvas.size


def _put_caption(canvas: Canvas, episode: Episode, number: int, x: int, y: int, width: int) -> None:
    """The step, what was done there, and what it brought."""
    right = x + width
    left = x + put_text(canvas, f"{number:,}", x, y, FAINT) + MARGIN
    if number == episode.length:
        put_text(canvas, fitting("end", right - left), left, y, end_ink(episode.end))
        return
    reward = float(episode.reward[number])
    right -= put_text(canvas, reward_text(reward), right, y, reward_ink(reward), anchor="r")
    put_text(canvas, fitting(episode.action_text(number), right - left - MARGIN), left, y)
