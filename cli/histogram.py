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
"""Values whose relative difference is smaller count as equal."""
_TINY = 1e-300
"""Smaller differences cannot be divided into bins."""
_HUGE = 1e300
"""Differences of larger values overflow."""
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
    # A bin includes its lower edge, and the last one both.
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
    """Edges at round numbers, and labels for the bins between them."""
    largest = max(abs(low), abs(high))
    if high - low <= max(largest * _SAME, _TINY):
        return np.array([low, high]), [number(low)]
    if largest > _HUGE:
        return np.array([low, high]), [f"{low:.4g} to {high:.4g}"]
    step = _round_step((high - low) / _MOST_BINS)
    if whole:
        step = max(step, 1.0)
    edges = np.arange(math.floor(low / step), math.floor(high / step) + 2) * step + 0.0  # no -0
    digits = max(0, -math.floor(math.log10(step)))
    form = ".4g" if digits > _MOST_DIGITS or largest >= _LARGE else f",.{digits}f"
    spans = [*pairwise(edges.tolist())]
    if whole:  # a bin of whole numbers ends before the next edge
        spans = [(max(a, low), min(b - 1, high)) for a, b in spans]
    labels = [f"{a:{form}}" if a == b else f"{a:{form}} to {b:{form}}" for a, b in spans]
    return edges, labels


def _round_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
