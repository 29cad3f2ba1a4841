"""Draw films and contact sheets: frames with text and a timeline around them.

Invariant: the pixels of a frame are copied, enlarged by whole numbers and never blended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image as Pictures
from PIL import ImageDraw, ImageFont

from mmreplay.errors import SchemaError, printable
from mmreplay.pictures import factor_for, resized
from mmreplay.rendering.episode import Episode, Moment

Canvas = Pictures.Image
Ink = tuple[int, int, int]

PAPER, INK, FAINT, _TRACK = (18, 20, 24), (232, 234, 237), (128, 134, 142), (52, 56, 64)
GAIN, LOSS, CUT = (86, 196, 110), (240, 96, 88), (244, 178, 62)
"""Colours of a reward above 0, or below and a terminal step, and of a truncated step."""
_END_INKS = {"terminated": LOSS, "truncated": CUT, "open": FAINT}

MOST_SIDE, MOST_PIXELS = 16_384, 250_000_000
"""Limits of a picture: those of MP4 encoders, and 750 MB of memory."""
MOST_TILES = 48
_COLUMNS = 6
_FILM_SIDE, _SHEET_SIDE, _LEAST_WIDTH = 420, 240, 240
_MARGIN, _TIMELINE, _LINE = 8, 16, 18
_FONT = ImageFont.load_default(size=13)


class FilmCanvas:
    """Draws the frames of a film: a frame of the episode, below it the step and the timeline."""

    def __init__(self, episode: Episode, scale: int | None) -> None:
        self._episode = episode
        self._factor, height, width = _scaled(episode.shape, scale, _FILM_SIDE)
        whole = max(width, _LEAST_WIDTH)
        self._empty = _blank(whole, height + 2 * _MARGIN + _LINE + _TIMELINE, scale)
        self.size: tuple[int, int] = self._empty.size  # (width, height) of the film
        self._left, self._line = (whole - width) // 2, height + _MARGIN // 2
        _put_timeline(self._empty, episode, self._line + _LINE)
        self._return = np.concatenate(([0.0], np.cumsum(episode.reward, dtype=np.float64)))

    def draw(self, moment: Moment) -> Canvas:
        """Draw one frame of the film."""
        canvas, episode, number = self._empty.copy(), self._episode, moment.number
        _put_frame(canvas, moment, self._factor, self._left, 0)
        total = f"return {self._return[number]:.6g}"
        end = canvas.width - _MARGIN
        used = _put_text(canvas, total, end, self._line, anchor="ra") + 3 * _MARGIN
        where = f"{number:>{len(f'{episode.length:,}')},} / {episode.length:,}"
        _put_step(canvas, episode, number, where, _MARGIN, self._line, end - used)
        here = _across(number, episode, canvas)
        base = self._line + _LINE + _TIMELINE - 4
        ImageDraw.Draw(canvas).rectangle((here - 1, base - 8, here + 1, base + 4), fill=INK)
        return canvas


def chosen_steps(rewards: npt.NDArray[np.floating]) -> list[int]:
    """The steps on a contact sheet: first and final, and the largest reward of each equal part."""
    length = len(rewards)
    if length < MOST_TILES:
        return [*range(length + 1)]
    size = np.abs(np.nan_to_num(rewards.astype(np.float64), posinf=0, neginf=0))
    edges = np.linspace(1, length, MOST_TILES - 1).astype(np.int64)
    inner = [int(start + size[start:stop].argmax()) for start, stop in itertools.pairwise(edges)]
    return [0, *inner, length]


def draw_sheet(
    episode: Episode,
    title: str,
    scale: int | None,
    numbers: Sequence[int],
    moments: Iterable[Moment],
) -> Canvas:
    """Draw a contact sheet: `title` and a timeline, below them the moments of some steps."""
    factor, height, width = _scaled(episode.shape, scale, _SHEET_SIDE)
    columns = min(_COLUMNS, len(numbers))
    across, down = width + _MARGIN, height + _LINE + _MARGIN
    head = 2 * _MARGIN + _LINE + _TIMELINE
    total = max(columns * across + _MARGIN, _LEAST_WIDTH)
    canvas = _blank(total, head + math.ceil(len(numbers) / columns) * down, scale)
    end, ink = total - _MARGIN, _END_INKS[episode.end]
    used = _put_text(canvas, episode.end_text, end, _MARGIN, ink, anchor="ra")
    _put_text(canvas, _fitting(title, end - used - 2 * _MARGIN), _MARGIN, _MARGIN)
    _put_timeline(canvas, episode, _MARGIN + _LINE)
    for place, moment in enumerate(moments):
        row, column = divmod(place, columns)
        x, y = _MARGIN + column * across, head + row * down
        _put_frame(canvas, moment, factor, x, y)
        _put_step(canvas, episode, moment.number, f"{moment.number:,}", x, y + height + 2, width)
    return canvas


def _put_timeline(canvas: Canvas, episode: Episode, y: int) -> None:
    """The episode from left to right: rewards, lost lives, and how it ended."""
    draw = ImageDraw.Draw(canvas)
    base, end = y + _TIMELINE - 4, canvas.width - _MARGIN - 1
    draw.rectangle((_MARGIN, base, end, base + 1), fill=_TRACK)
    rewards = np.nan_to_num(episode.reward.astype(np.float64), posinf=0, neginf=0)
    sizes = np.abs(rewards)
    for number in sizes.argsort(kind="stable")[np.count_nonzero(sizes == 0) :].tolist():
        # The largest reward is drawn last, over those in the same column of pixels.
        here = _across(number, episode, canvas)
        draw.rectangle((here, y, here, base - 1), fill=PAPER)
        top = base - math.ceil(sizes[number] / sizes.max() * (_TIMELINE - 5))
        draw.rectangle((here, top, here, base - 1), fill=GAIN if rewards[number] > 0 else LOSS)
    for number in np.flatnonzero(~episode.non_terminal[:-1]).tolist():  # lost lives
        here = _across(number + 1, episode, canvas)
        draw.rectangle((here, base - 2, here, base + 3), fill=LOSS)
    if episode.end != "open":
        draw.rectangle((end - 2, base - 4, end, base + 4), fill=_END_INKS[episode.end])


def _blank(width: int, height: int, scale: int | None) -> Canvas:
    """An empty canvas; both sides are even, as videos need them."""
    if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
        raise SchemaError(
            f"scale: {scale} makes a picture of {width:,} x {height:,} pixels, more than "
            f"{MOST_SIDE:,} per side or {MOST_PIXELS:,} in all; choose a smaller one"
        )
    return Pictures.new("RGB", (width + width % 2, height + height % 2), PAPER)


def _scaled(shape: Sequence[int], scale: int | None, side: int) -> tuple[int, int, int]:
    """The factor for `resized`, and the height and width that result."""
    factor = factor_for(shape, side) if scale is None else scale
    height, width = (n * factor if factor > 0 else math.ceil(n / -factor) for n in shape[:2])
    return factor, height, width


def _put_frame(canvas: Canvas, moment: Moment, factor: int, x: int, y: int) -> None:
    image = np.ascontiguousarray(resized(moment.image, factor))
    canvas.paste(Pictures.fromarray(image), (x, y))


def _put_step(
    canvas: Canvas, episode: Episode, number: int, where: str, x: int, y: int, width: int
) -> None:
    """A line about a step: its number, its action, and on the right its reward."""
    used = _put_text(canvas, where, x, y, FAINT) + _MARGIN
    if number == episode.length:
        text, ink = episode.end_text, _END_INKS[episode.end]
    else:
        reward = float(episode.reward[number])
        text, ink = episode.action_text(number), INK
        gained = f"{reward:+.4g}" if reward else ""
        fill = GAIN if reward > 0 else LOSS if reward < 0 else FAINT
        width -= _put_text(canvas, gained, x + width, y, fill, anchor="ra") + _MARGIN
    _put_text(canvas, _fitting(text, width - used), x + used, y, ink)


def _put_text(
    canvas: Canvas, text: str, x: int, y: int, ink: Ink = INK, *, anchor: str = "la"
) -> int:
    """One line of text from x on (la), or up to x (ra); returns its width."""
    shown = printable(text)
    ImageDraw.Draw(canvas).text((x, y), shown, ink, _FONT, anchor=anchor)
    return round(_FONT.getlength(shown))


def _fitting(text: str, width: int) -> str:
    """The text, shortened to the width if necessary."""
    text = text[: max(width, 0)]
    while text and _FONT.getlength(text) > width:
        text = f"{text[:-2]}…" if len(text) > 2 else ""  # noqa: PLR2004
    return text


def _across(number: int, episode: Episode, canvas: Canvas) -> int:
    """Where a step is on the timeline, in pixels from the left."""
    width = canvas.width - 2 * _MARGIN
    return _MARGIN + round(number / max(episode.length, 1) * (width - 1))
