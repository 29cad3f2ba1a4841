"""A small histogram in text."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .wording import number

__all__ = ["histogram"]

_MOST_BINS = 8
_LONGEST_BAR = 40
_MOST_DIGITS = 6
_LARGE = 1e12
_SAME = 1e-9
"""Values that differ by less, relative to their size, are one."""
_TINY = 1e-300
"""A step that can be divided has no smaller one."""
_HUGE = 1e300
"""No room for edges around values like these."""
_EIGHTHS = " ▏▎▍▌▋▊▉"
_FULL = "█"


def histogram(values: npt.NDArray[Any], width: int, *, plain: bool = False) -> list[str]:
    """Lines of a bar chart, at most `width` columns wide.

    Args:
        values: (n,) numbers; those that are not finite are left out.
        width: columns.
        plain: bars of # instead of block characters.
    """
    values = values[np.isfinite(values)]
    if not values.size:
        return []
    edges, labels = _bins(float(values.min()), float(values.max()), bool((values % 1 == 0).all()))
    # Bins hold their lower edge, and the last one both.
    place = np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(labels) - 1)
    counts = np.bincount(place, minlength=len(labels)).tolist()
    left = max(map(len, labels))
    right = max(len(f"{n:,}") for n in counts)
    room = max(min(width - left - right - 3, _LONGEST_BAR), 1)
    most = max(counts)
    return [
        f"{label:>{left}}  {_bar(n / most * room, plain)} {n:,}".rstrip()
        if n
        else f"{label:>{left}}"
        for label, n in zip(labels, counts, strict=True)
    ]


def _bar(length: float, plain: bool) -> str:
    if plain:
        return "#" * max(round(length), 1)
    eighths = max(round(length * 8), 1)
    return _FULL * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _bins(low: float, high: float, whole: bool) -> tuple[npt.NDArray[Any], list[str]]:
    """Edges at round numbers, and what to call what lies between them."""
    largest = max(abs(low), abs(high))
    if high - low <= max(largest * _SAME, _TINY):
        return np.array([low, high]), [number(low)]
    if largest > _HUGE:
        return np.array([low, high]), [f"{low:.4g} to {high:.4g}"]
    step = _round_step((high - low) / _MOST_BINS)
    if whole:
        step = max(step, 1.0)
    first = math.floor(low / step)
    last = math.floor(high / step)
    edges = np.arange(first, last + 2) * step
    if whole and step == 1:
        return edges, [number(edge) for edge in edges[:-1].tolist()]
    digits = max(0, -math.floor(math.log10(step)))
    form = ".4g" if digits > _MOST_DIGITS or largest >= _LARGE else f",.{digits}f"
    if whole:
        # Both ends are in the bin, and those of the outer ones occur.
        spans = [(max(a, low), min(b - 1, high)) for a, b in pairwise(edges.tolist())]
    else:
        spans = list(pairwise(edges.tolist()))
    return edges, [_span(a, b, form) for a, b in spans]


def _span(a: float, b: float, form: str) -> str:
    """Both ends, or the one number that they are."""
    # + 0.0: no -0
    return f"{a + 0.0:{form}}" if a == b else f"{a + 0.0:{form}} to {b + 0.0:{form}}"


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
