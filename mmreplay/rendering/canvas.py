"""One canvas for films and contact sheets: frames, and words and a timeline around them.

Invariant: the pixels of a frame are copied, enlarged by whole numbers and never blended.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MissingExtraError, SchemaError
from mmreplay.pictures.images import factor_for, resized
from mmreplay.rendering.episode import Episode, Moment

try:
    from PIL import Image as Pictures
    from PIL import ImageDraw, ImageFont
except ImportError as error:
    raise MissingExtraError(
        'drawing pictures needs Pillow: pip install "mmreplay[pictures]"'
    ) from error

Canvas = Pictures.Image
Ink = tuple[int, int, int]

PAPER, INK, FAINT, _TRACK = (18, 20, 24), (232, 234, 237), (128, 134, 142), (52, 56, 64)
GAIN, LOSS, CUT = (86, 196, 110), (240, 96, 88), (244, 178, 62)
"""A reward above 0, or below; also a terminal step, and one that was cut off."""
_END_INKS = {"terminated": LOSS, "truncated": CUT, "open": FAINT}

MOST_SIDE, MOST_PIXELS = 16_384, 250_000_000
"""Of one picture: what the encoder of MP4 takes, and 750 MB in memory."""
MOST_TILES = 48
_COLUMNS = 6
_FILM_SIDE, _SHEET_SIDE = 420, 240
_LEAST_WIDTH = 240
_MARGIN = 8
_TIMELINE = 16
_LINE = 18
_TEXT = 13

_FONT = ImageFont.load_default(size=_TEXT)


class FilmCanvas:
    """The frames of a film: a frame of the episode, below it the step and the timeline.

    Args:
        episode: what is shown.
        shape: (height, width) of its frames.
        scale: how many times as large they become, None for what fits a screen.
    """

    def __init__(self, episode: Episode, shape: Sequence[int], scale: int | None) -> None:
        self._episode = episode
        self._factor, height, width = _scaled(shape, scale, _FILM_SIDE)
        whole = max(width, _LEAST_WIDTH)
        self._empty = _blank(whole, height + 2 * _MARGIN + _LINE + _TIMELINE, scale)
        self._left, self._line = (whole - width) // 2, height + _MARGIN // 2
        self._room = self._empty.width - 2 * _MARGIN
        put_timeline(self._empty, episode, _MARGIN, self._line + _LINE, self._room)
        self._return = np.concatenate(([0.0], np.cumsum(episode.reward, dtype=np.float64)))

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the film."""
        return self._empty.size

    def draw(self, moment: Moment) -> Canvas:
        """The next frame of the film."""
        canvas, episode, number = self._empty.copy(), self._episode, moment.number
        _put_frame(canvas, moment, self._factor, self._left, 0)
        total = f"return {self._return[number]:.6g}"
        used = _put_text(canvas, total, _MARGIN + self._room, self._line, anchor="ra") + 2 * _MARGIN
        where = f"{number:>{len(f'{episode.length:,}')},} / {episode.length:,}"
        _put_step(canvas, episode, number, where, _MARGIN, self._line, self._room - used)
        here = _MARGIN + _across(number, episode, self._room)
        base = self._line + _LINE + _TIMELINE - 4
        ImageDraw.Draw(canvas).rectangle((here - 1, base - 8, here + 1, base + 4), fill=INK)
        return canvas


def chosen_steps(rewards: npt.NDArray[np.floating]) -> list[int]:
    """The steps on a contact sheet: first and final, and in even parts the largest reward."""
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
    """A contact sheet: `title` and a timeline, below them the frames of some steps.

    Args:
        episode: what is shown.
        title: its first line.
        scale: how many times as large the frames become, None for what fits a page.
        numbers: of the steps, ascending.
        moments: of these steps, in order.
    """
    moments = iter(moments)
    first = next(moments)
    factor, height, width = _scaled(first.image.shape, scale, _SHEET_SIDE)
    columns = min(_COLUMNS, len(numbers))
    across, down = width + _MARGIN, height + _LINE + _MARGIN
    head = 2 * _MARGIN + _LINE + _TIMELINE
    total = max(columns * across + _MARGIN, _LEAST_WIDTH)
    canvas = _blank(total, head + -(-len(numbers) // columns) * down, scale)
    room = total - 2 * _MARGIN
    used = _put_text(
        canvas, episode.end_text, total - _MARGIN, _MARGIN, _END_INKS[episode.end], anchor="ra"
    )
    _put_text(canvas, _fitting(title, room - used - _MARGIN), _MARGIN, _MARGIN)
    put_timeline(canvas, episode, _MARGIN, _MARGIN + _LINE, room, numbers)
    for place, moment in enumerate(itertools.chain([first], moments)):
        row, column = divmod(place, columns)
        x, y = _MARGIN + column * across, head + row * down
        _put_frame(canvas, moment, factor, x, y)
        _put_step(canvas, episode, moment.number, f"{moment.number:,}", x, y + height + 2, width)
    return canvas


def put_timeline(
    canvas: Canvas, episode: Episode, x: int, y: int, width: int, marks: Sequence[int] = ()
) -> None:
    """The episode from left to right: rewards, lost lives, and how it ended.

    `marks` are steps with a notch below the line.
    """
    draw = ImageDraw.Draw(canvas)
    base = y + _TIMELINE - 4
    draw.rectangle((x, base, x + width - 1, base + 1), fill=_TRACK)
    for number in marks:
        here = x + _across(number, episode, width)
        draw.rectangle((here, base + 3, here, base + 4), fill=FAINT)
    heights = _reward_heights(episode.reward, width, _TIMELINE - 5)
    for column in np.flatnonzero(heights).tolist():
        height, here = int(heights[column]), x + column
        ink = GAIN if height > 0 else LOSS
        draw.rectangle((here, base - abs(height), here, base - 1), fill=ink)
    for number in np.flatnonzero(~episode.non_terminal[:-1]).tolist():  # lives that were lost
        here = x + _across(number + 1, episode, width)
        draw.rectangle((here, base - 2, here, base + 3), fill=LOSS)
    if episode.end != "open":
        end = x + width - 1
        draw.rectangle((end - 2, base - 4, end, base + 4), fill=_END_INKS[episode.end])


def _blank(width: int, height: int, scale: int | None) -> Canvas:
    """A canvas with nothing on it; both sides are even, as videos need them."""
    if max(width, height) > MOST_SIDE or width * height > MOST_PIXELS:
        raise SchemaError(
            f"scale: {scale} makes a picture of {width:,} x {height:,} pixels, more than "
            f"{MOST_SIDE:,} in a row or {MOST_PIXELS:,} in all; choose a smaller one"
        )
    return Pictures.new("RGB", (width + width % 2, height + height % 2), PAPER)


def _scaled(shape: Sequence[int], scale: int | None, side: int) -> tuple[int, int, int]:
    """What `resized` takes, and the height and width that it makes."""
    factor = factor_for(shape, side) if scale is None else scale
    height, width = (n * factor if factor > 0 else math.ceil(n / -factor) for n in shape[:2])
    return factor, height, width


def _put_frame(canvas: Canvas, moment: Moment, factor: int, x: int, y: int) -> None:
    """A frame with its upper left corner there."""
    image = np.ascontiguousarray(resized(moment.image, factor))
    canvas.paste(Pictures.fromarray(image), (x, y))


def _put_step(
    canvas: Canvas, episode: Episode, number: int, where: str, x: int, y: int, width: int
) -> None:
    """A line about a step: where it is, what was done there, and at its end what it brought."""
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
    """One line of text from there on (la), or up to there (ra); returns its width."""
    shown = "".join(one if one.isprintable() else "?" for one in text)
    ImageDraw.Draw(canvas).text((x, y), shown, ink, _FONT, anchor=anchor)
    return round(_FONT.getlength(shown))


def _fitting(text: str, width: int) -> str:
    """As much of a text as there is room for."""
    text = text[: max(width, 0)]
    while text and _FONT.getlength(text) > width:
        text = f"{text[:-2]}…" if len(text) > 2 else ""  # noqa: PLR2004
    return text


def _across(number: int, episode: Episode, width: int) -> int:
    return round(number / max(episode.length, 1) * (width - 1))


def _reward_heights(
    rewards: npt.NDArray[np.floating], width: int, most: int
) -> npt.NDArray[np.int64]:
    """For each column of pixels the largest reward of its steps, below 0 for a loss."""
    values = np.nan_to_num(rewards.astype(np.float64), posinf=0, neginf=0)
    out = np.zeros(width)
    columns = np.arange(len(values)) * width // max(len(values), 1)
    order = np.abs(values).argsort(kind="stable")  # the largest is written last
    out[columns[order]] = values[order]
    largest = np.abs(out).max(initial=0) or 1.0
    return np.where(out == 0, 0, np.sign(out) * np.ceil(np.abs(out) / largest * most)).astype(
        np.int64
    )
