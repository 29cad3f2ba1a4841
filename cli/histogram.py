"""A small histogram in text."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from .wording import number

_MOST_BINS = 8
_LONGEST_BAR = 30
_MOST_DIGITS = 6
_LARGE = 1e12
_LARGEST = 1e300
"""Differences of larger values may be infinite."""
_SAME, _TINY = 1e-9, 1e-300
"""Relative and absolute difference of values that count as equal."""


def histogram(values: npt.NDArray[Any], bar: str) -> list[str]:
    """Lines of a bar chart of (n,) numbers, at most 80 columns wide, drawn with one letter.

    NaN, infinities and values above 1e300 are left out.
    """
    values = values[np.abs(values) < _LARGEST]
    if not values.size:
        return []
    edges, labels = _bins(float(values.min()), float(values.max()), bool((values % 1 == 0).all()))
    # A bin includes its lower edge, and the last one both.
    index = np.clip(np.searchsorted(edges, values, "right") - 1, 0, len(labels) - 1)
    counts = np.bincount(index, minlength=len(labels)).tolist()
    width = max(map(len, labels))
    return [
        f"{label:>{width}}  {bar * max(round(n / max(counts) * _LONGEST_BAR), 1)} {n:,}"
        if n
        else f"{label:>{width}}"
        for label, n in zip(labels, counts, strict=True)
    ]


def _bins(low: float, high: float, whole: bool) -> tuple[npt.NDArray[Any], list[str]]:
    """Edges at round numbers, and labels for the bins between them."""
    largest = max(abs(low), abs(high))
    if high - low <= max(largest * _SAME, _TINY):
        return np.array([low, high]), [number(low)]
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
