"""``mmreplay episodes``: a table of the episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from .wording import Whole, echo, echo_json, number

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_LARGEST_FIRST = ("return", "length")


@click.command("episodes")
@click.argument("path", type=click.Path())
@click.option(
    "--sort",
    type=click.Choice(["id", "return", "length", "end"]),
    default="id",
    show_default=True,
    help="id: oldest first; return and length: largest first.",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--limit", type=Whole(min=0), help="Show at most this many.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as one JSON object.")
def episodes(path: str, sort: str, reverse: bool, limit: int | None, as_json: bool) -> None:
    """List the episodes of the store at PATH.

    # is the number of an episode for other commands and Store.trajectory(). id, row and, in a
    vector store, env are those of its first step. An episode is terminated, truncated or still
    running; then its return is the sum so far. Episodes that were evicted in part are not listed.
    """
    import numpy as np

    import mmreplay

    with mmreplay.open(path) as store:
        found = store.episodes
        ends = store.endings(found)
        environments = [lane.environments for lane in store.lanes]
        has_evicted = any(lane.first for lane in store.lanes)
    keys = ends if sort == "end" else found[sort]
    if sort in _LARGEST_FIRST:
        # NaN counts as the smallest. Stable: equal ones stay in the order of their ids.
        order = np.argsort(
            np.where(np.isnan(keys), np.inf, -keys.astype(np.float64)), kind="stable"
        )
    else:
        order = np.argsort(keys, kind="stable")
    order = (order[::-1] if reverse else order)[:limit]
    if as_json:
        rows = [
            _as_json(number_, found[number_], ends[number_], environments)
            for number_ in order.tolist()
        ]
        echo_json({"path": path, "total": len(found), "episodes": rows})
        return
    echo("\n".join(_lines(found, ends, order, environments)))
    if has_evicted:
        echo("Partly evicted episodes are not listed; `mmreplay view` shows them")


def _place(episode: np.void, environments: list[int]) -> tuple[int, int, int]:
    """Lane, row and environment of an episode's first transition."""
    from mmreplay import LANE_SHIFT

    lane = int(episode["id"]) >> LANE_SHIFT
    return lane, *divmod(int(episode["id"]) & ((1 << LANE_SHIFT) - 1), environments[lane])


def _as_json(number_: int, episode: np.void, end: str, environments: list[int]) -> dict[str, Any]:
    import math

    lane, row, environment = _place(episode, environments)
    total = float(episode["return"])
    return {
        "number": number_,
        "id": int(episode["id"]),
        "lane": lane,
        "row": row,
        "environment": environment,
        "length": int(episode["length"]),
        "return": total if math.isfinite(total) else None,
        "terminated": str(end) == "terminated",
        "truncated": str(end) == "truncated",
        "end": str(end),
    }


def _lines(
    found: npt.NDArray[np.void],
    ends: npt.NDArray[np.str_],
    order: npt.NDArray[np.intp],
    environments: list[int],
) -> list[str]:
    """Aligned columns; rich takes seconds for ten thousand rows."""
    shown = 3 if max(environments, default=1) > 1 else 2
    heads = ("#", "id", *("lane", "row", "env")[:shown], "length", "return", "end")
    rows = [heads]
    for place in order.tolist():
        one = found[place]
        rows.append(
            (
                str(place),
                str(int(one["id"])),
                *map(str, _place(one, environments)[:shown]),
                f"{int(one['length']):,}",
                number(float(one["return"])),
                "running" if ends[place] == "open" else str(ends[place]),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads) - 1)]
    lines = []
    for *numbers, end in rows:
        cells = [f"{text:>{width}}" for text, width in zip(numbers, widths, strict=True)]
        lines.append("  ".join([*cells, end]))
    left = len(found) - len(order)
    return [*lines, f"and {left:,} more"] if left else lines
