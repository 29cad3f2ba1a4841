"""What a notebook shows of a store, a trajectory or a batch: a table, some frames, some curves.

Invariant: nothing here raises, and every text is escaped. What cannot be shown is a line of the
table that says why.
"""

from __future__ import annotations

import base64
import dataclasses
import html
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mmreplay.pictures.images import (
    Image,
    factor_for,
    is_picture,
    limits_of,
    plane,
    resized,
    strip,
    to_bytes,
)
from mmreplay.pictures.png import png

Frames = npt.NDArray[Any] | dict[str, npt.NDArray[Any]]

MOST_FRAMES = 8
_MOST_KEYS = 4
_MOST_CURVES = 8
_LONGEST_TEXT = 300
_SIDE = 96
_WIDTH, _HEIGHT = 480, 48
_POINTS = 240
_INKS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#888888")


@dataclasses.dataclass(slots=True)
class Cell:
    """What one is made of.

    Attributes:
        title: its first line.
        rows: names and what they are, line by line.
        frames: (n, *frame), or a dict of these: those to be shown.
        captions: (n), of the frames.
        curves: (T,) or (T, k) values by name, drawn as lines.
    """

    title: str
    rows: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    frames: Frames | None = None
    captions: Sequence[str] = ()
    curves: dict[str, npt.NDArray[Any]] = dataclasses.field(default_factory=dict)


def even(n: int, most: int = MOST_FRAMES) -> npt.NDArray[np.int64]:
    """At most so many numbers below n at even distances, the first and the last among them."""
    return np.unique(np.linspace(0, max(n - 1, 0), min(n, most)).round().astype(np.int64))


def rows_at(frames: Frames, places: npt.NDArray[np.int64]) -> Frames:
    """Some rows of frames; `places` are their numbers."""
    if isinstance(frames, dict):
        return {name: values[places] for name, values in frames.items()}
    return frames[places]


def shape_row(name: str, values: npt.NDArray[Any]) -> tuple[str, str]:
    """The line of the table for an array."""
    return name, f"{values.dtype} {list(values.shape)}"


def cell_html(make: Callable[[], Cell]) -> str:
    """The cell as HTML with its styles in it, pictures as PNG."""
    try:
        return _html(make())
    except Exception as error:  # noqa: BLE001 (a notebook would show a traceback in each cell)
        return f"<p>{_text(f'cannot be shown: {error}')}</p>"


def cell_png(make: Callable[[], Cell]) -> bytes | None:
    """The frames of the cell side by side; None if none of them is a picture."""
    try:
        shown = _pictures(make().frames)
        return png(strip(shown[0][1])) if shown else None
    except Exception:  # noqa: BLE001 (None is how a notebook is told that there is no picture)
        return None


def _pictures(frames: Frames | None) -> list[tuple[str, list[Image]]]:
    """The frames of each key whose frames are pictures, ready for a screen."""
    by_key = frames if isinstance(frames, dict) else {"": frames} if frames is not None else {}
    shown = []
    for name, values in by_key.items():
        if not len(values) or not is_picture(values.shape[1:]):
            continue
        planes = [one for value in values if (one := plane(value)) is not None]
        # What is too large is made smaller first: limits are of what is shown.
        factor = factor_for(planes[0].shape, _SIDE)
        if factor < 0:
            planes = [one[::-factor, ::-factor] for one in planes]
        limits = limits_of(planes)
        images = [to_bytes(one, limits) for one in planes]
        if len({image.shape for image in images}) > 1:  # colours in some of them only
            images = [one if one.ndim > 2 else np.stack([one] * 3, -1) for one in images]  # noqa: PLR2004
        shown.append((name, [resized(image, max(factor, 1)) for image in images]))
    return shown[:_MOST_KEYS]


def _text(text: str) -> str:
    shown = text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
    return html.escape(shown)


def _html(cell: Cell) -> str:
    rows = list(cell.rows)
    try:
        pictures = "".join(
            _figures(name, images, cell.captions) for name, images in _pictures(cell.frames)
        )
        curves = "".join(_curve(name, values) for name, values in cell.curves.items())
    except Exception as error:  # noqa: BLE001 (the table is shown all the same)
        pictures = curves = ""
        rows.append(("pictures", f"cannot be shown: {error}"))
    lines = "".join(
        f'<tr><th style="text-align:left;padding:1px 12px 1px 0">{_text(name)}</th>'
        f'<td style="text-align:left;padding:1px 0">{_text(value)}</td></tr>'
        for name, value in rows
    )
    return (
        f'<div><b>{_text(cell.title)}</b>{pictures}{curves}<table style="border:0">{lines}'
        f"</table></div>"
    )


def _figures(name: str, images: Sequence[Image], captions: Sequence[str]) -> str:
    parts = []
    for number, image in enumerate(images):
        data = base64.b64encode(png(image)).decode()
        height, width = image.shape[:2]
        caption = captions[number] if number < len(captions) else ""
        parts.append(
            f'<figure style="display:inline-block;margin:4px 4px 0 0;vertical-align:top">'
            f'<img width="{width}" height="{height}" alt="" style="image-rendering:pixelated" '
            f'src="data:image/png;base64,{data}">'
            f'<figcaption style="font-size:80%">{_text(caption)}</figcaption></figure>'
        )
    head = f"<div>{_text(name)}</div>" if name else ""
    return f'<div style="white-space:nowrap;overflow-x:auto">{head}{"".join(parts)}</div>'


def _curve(name: str, values: npt.NDArray[Any]) -> str:
    """Lines of values over their number, each column with its colour; '' if there is nothing."""
    columns = _thinned(np.asarray(values, np.float64).reshape(len(values), -1)[:, :_MOST_CURVES])
    finite = columns[np.isfinite(columns)]
    if len(columns) < 2 or not finite.size:  # noqa: PLR2004 (a line has two ends)
        return ""
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        return f'<div style="font-size:80%">{_text(f"{name}: {low:.4g}")}</div>'
    with np.errstate(over="ignore", invalid="ignore"):
        shares = (columns - low) / (high - low)
    across = np.linspace(0, _WIDTH, len(columns))
    lines = []
    for number, column in enumerate(shares.T):
        here = np.isfinite(column)
        points = " ".join(
            f"{x:.1f},{1 + (1 - y) * (_HEIGHT - 2):.1f}"
            for x, y in zip(across[here].tolist(), column[here].tolist(), strict=True)
        )
        ink = _INKS[number % len(_INKS)]
        lines.append(f'<polyline fill="none" stroke="{ink}" points="{points}"/>')
    label = f"{name}: {low:.4g} to {high:.4g}"
    return (
        f'<div style="font-size:80%">{_text(label)}</div>'
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f"{''.join(lines)}</svg>"
    )


def _thinned(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """At most `_POINTS` rows: of the others, the value of each column that is farthest from 0."""
    if len(values) <= _POINTS:
        return values
    out = []
    for part in np.array_split(values, _POINTS):
        farthest = np.nan_to_num(np.abs(part), nan=-1).argmax(axis=0)
        out.append(part[farthest, np.arange(part.shape[1])])
    return np.array(out)
