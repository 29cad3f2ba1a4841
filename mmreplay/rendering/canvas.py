"""What is drawn around frames: the step, its action and reward, and a timeline of the episode.

Invariant: the pixels of a frame are copied, enlarged by whole numbers and never blended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from mmreplay.errors import MissingExtraError, SchemaError
from mmreplay.pictures.images import Image, factor_for, resized
from mmreplay.rendering.episode import Episode, Moment

try:
    from PIL import Image as Pictures
    from PIL import ImageDraw, ImageFont
except ImportError as error:
    raise MissingExtraError(
        'drawing pictures needs Pillow: pip install "mmreplay[pictures]"'
    ) from error

PAPER = (18, 20, 24)
INK = (232, 234, 237)
FAINT = (128, 134, 142)
_TRACK = (52, 56, 64)
_GAIN, _LOSS, _CUT = (86, 196, 110), (240, 96, 88), (244, 178, 62)
"""A reward above 0, or below; also a terminal step, and one that was cut off."""

MOST_PIXELS = 250_000_000
"""Of one picture: 750 MB in memory. Viewers and encoders take hardly more."""
MARGIN = 8
_TIMELINE = 16
_TEXT = 13
_LINE = 18
_LEAST_WIDTH = 240
_LONGEST_NAME = 40

_FONT = ImageFont.load_default(size=_TEXT)

Canvas = Pictures.Image


def blank(width: int, height: int) -> Canvas:
    """A canvas with nothing on it; both sides are even, as videos need them."""
    return Pictures.new("RGB", (width + width % 2, height + height % 2), PAPER)


def check_scale(
    scale: int | None, size_at: Callable[[int], tuple[int, int]], kind: str, most_side: int
) -> None:
    """Raise SchemaError, with the largest scale that does, if a picture becomes too large.

    Args:
        scale: what was asked for.
        size_at: (width, height) of the picture at a scale.
        kind: what is made of it, for the message.
        most_side: pixels that this has at most in a row or a column.
    """

    def fits(factor: int) -> bool:
        width, height = size_at(factor)
        return max(width, height) <= most_side and width * height <= MOST_PIXELS

    if scale is None or fits(scale):
        return
    width, height = size_at(scale)
    largest = next((one for one in range(scale, 0, -1) if fits(one)), 0)
    advice = f"expected at most {largest}" if largest else "leave it out, for what fits a screen"
    raise SchemaError(
        f"scale: {scale} makes pictures of {width:,} x {height:,} pixels, too large for {kind}: "
        f"{advice}"
    )


def film_size(width: int, height: int) -> tuple[int, int]:
    """(width, height) of a film of frames of this size."""
    return max(width, _LEAST_WIDTH), height + 2 * MARGIN + _LINE + _TIMELINE


def put_frame(canvas: Canvas, image: Image, x: int, y: int) -> None:
    """A frame with its upper left corner there."""
    colours = image if image.ndim > 2 else image[..., None].repeat(3, axis=-1)  # noqa: PLR2004
    canvas.paste(Pictures.fromarray(np.ascontiguousarray(colours)), (x, y))


def put_text(
    canvas: Canvas,
    text: str,
    x: int,
    y: int,
    ink: tuple[int, int, int] = INK,
    *,
    anchor: str = "l",
) -> int:
    """One line of text, `anchor` at its left (l) or right (r) end; returns its width."""
    shown = "".join(one if one.isprintable() else "?" for one in text)
    ImageDraw.Draw(canvas).text((x, y), shown, ink, _FONT, anchor=f"{anchor}a")
    return round(_FONT.getlength(shown))


def fitting(text: str, width: int) -> str:
    """As much of a text as there is room for."""
    text = text if len(text) <= width else text[:width]
    while text and _FONT.getlength(text) > width:
        text = f"{text[:-2]}…" if len(text) > 2 else ""  # noqa: PLR2004
    return text


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
        height = int(heights[column])
        draw.rectangle(
            (x + column, base - abs(height), x + column, base - 1),
            fill=_GAIN if height > 0 else _LOSS,
        )
    for number in np.flatnonzero(~episode.non_terminal[:-1]).tolist():  # lives that were lost
        here = x + _across(number + 1, episode, width)
        draw.rectangle((here, base - 2, here, base + 3), fill=_LOSS)
    if episode.end != "open":
        fill = _LOSS if episode.end == "terminated" else _CUT
        draw.rectangle((x + width - 3, base - 4, x + width - 1, base + 4), fill=fill)


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
    largest = np.abs(out).max(initial=0)
    if largest:
        out = np.where(out == 0, 0, np.sign(out) * np.ceil(np.abs(out) / largest * most))
    return out.astype(np.int64)


def reward_text(reward: float) -> str:
    """+1, -0.5; '' for 0."""
    return f"{reward:+.4g}" if reward else ""


def reward_ink(reward: float) -> tuple[int, int, int]:
    """The colour of a reward."""
    return _GAIN if reward > 0 else _LOSS if reward < 0 else FAINT


def end_ink(end: str) -> tuple[int, int, int]:
    """The colour of an end."""
    return {"terminated": _LOSS, "truncated": _CUT}.get(end, FAINT)


class FilmCanvas:
    """The frames of a film: a frame of the episode, below it the step and the timeline.

    Args:
        episode: what is shown.
        shape: (height, width) of its frames.
        scale: how many times as large they become, None for what fits a screen.
    """

    def __init__(self, episode: Episode, shape: Sequence[int], scale: int | None) -> None:
        self._episode = episode
        self._factor = factor_for(shape, 420) if scale is None else scale
        height, width = resized(np.zeros(shape[:2], np.uint8), self._factor).shape
        self._width, whole = film_size(width, height)
        self._left, self._height = (self._width - width) // 2, height
        self._empty = blank(self._width, whole)
        self._timeline = height + MARGIN // 2 + _LINE
        put_timeline(self._empty, episode, MARGIN, self._timeline, self._width - 2 * MARGIN)
        self._return = np.concatenate(([0.0], np.cumsum(episode.reward, dtype=np.float64)))

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the film."""
        return self._empty.size

    def draw(self, moment: Moment) -> npt.NDArray[np.uint8]:
        """(H, W, 3)."""
        canvas, episode, number = self._empty.copy(), self._episode, moment.number
        put_frame(canvas, resized(moment.image, self._factor), self._left, 0)
        y = self._height + MARGIN // 2
        right = self._width - MARGIN
        # What is the same in most frames has a place of its own, so that it does not jump.
        right -= put_text(canvas, f"return {self._return[number]:.6g}", right, y, anchor="r")
        digits = len(f"{episode.length:,}")
        x = MARGIN + put_text(canvas, f"{number:>{digits},} / {episode.length:,}", MARGIN, y, FAINT)
        if number < episode.length:
            reward = float(episode.reward[number])
            text = reward_text(reward)
            room = right - x - 3 * MARGIN - round(_FONT.getlength(text))
            action = fitting(episode.action_text(number)[:_LONGEST_NAME], room)
            x += MARGIN
            x += put_text(canvas, action, x, y) + MARGIN
            put_text(canvas, text, x, y, reward_ink(reward))
        else:
            words = "goes on" if episode.end == "open" else episode.end
            put_text(
                canvas, fitting(words, right - x - 2 * MARGIN), x + MARGIN, y, end_ink(episode.end)
            )
        here = MARGIN + _across(number, episode, self._width - 2 * MARGIN)
        base = self._timeline + _TIMELINE - 4
        ImageDraw.Draw(canvas).rectangle((here - 1, base - 8, here + 1, base + 4), fill=INK)
        return np.asarray(canvas)
