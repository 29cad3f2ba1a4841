"""The findings of `verify` as a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .wording import table

if TYPE_CHECKING:
    from mmreplay import Finding

__all__ = ["findings_table", "findings_tables", "span"]

_SHOWN = 50


def findings_tables(findings: Sequence[Finding]) -> list[Any]:
    """Tables of what is damaged, and of files that do not belong to the store."""
    parts: list[Any] = []
    damaged = [one for one in findings if not one.is_stray]
    strays = [one for one in findings if one.is_stray]
    for some, heading in ((damaged, "damaged"), (strays, "stray")):
        if some:
            parts += [findings_table(some, heading), ""]
    return parts


def findings_table(findings: Sequence[Finding], heading: str) -> Any:
    """File, rows and message of each; the first of many."""
    rows = [
        (
            one.file or ".",
            "" if one.rows is None else span(*one.rows),
            one.message,
        )
        for one in findings[:_SHOWN]
    ]
    left = len(findings) - _SHOWN
    if left > 0:
        rows.append(("...", "", f"and {left:,} more; --json lists all of them"))
    return table((heading, "rows", "what"), rows, right=())


def span(start: int, stop: int) -> str:
    """The rows [start, stop)."""
    return f"{start:,}" if stop - start <= 1 else f"{start:,} to {stop - 1:,}"
