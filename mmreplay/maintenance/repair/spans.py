"""Spans of rows."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""Rows [start, stop)."""


def merged(spans: Sequence[Span], base: int, head: int) -> list[Span]:
    """Spans within [base, head), ascending, those that touch as one."""
    out: list[Span] = []
    for start, stop in sorted((max(start, base), min(stop, head)) for start, stop in spans):
        if stop <= start:
            continue
        if out and start <= out[-1][1]:
            out[-1] = out[-1][0], max(stop, out[-1][1])
        else:
            out.append((start, stop))
    return out
