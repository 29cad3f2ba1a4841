"""``mmreplay episodes``: a table of the episodes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from .wording import Whole, aligned, echo, echo_json, number

if TYPE_CHECKING:
    import numpy as np

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
    running (its return is the sum so far). Episodes that were evicted in part are not listed.
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
    rows = [_row(index, found[index], str(ends[index]), environments) for index in order.tolist()]
    if as_json:
        for row in rows:
            row["return"] = row["return"] if math.isfinite(row["return"]) else None
        echo_json({"path": path, "total": len(found), "episodes": rows})
        return
    lines = [_table(rows, ("lane", "row", "environment")[: 3 if max(environments) > 1 else 2])]
    if left := len(found) - len(rows):
        lines.append(f"and {left:,} more")
    if has_evicted:
        lines.append("Partly evicted episodes are not listed; `mmreplay view` shows them")
    echo("\n".join(lines))


def _row(index: int, episode: np.void, end: str, environments: list[int]) -> dict[str, Any]:
    from mmreplay import LANE_SHIFT

    lane = int(episode["id"]) >> LANE_SHIFT
    row, environment = divmod(int(episode["id"]) & ((1 << LANE_SHIFT) - 1), environments[lane])
    return {
        "number": index,
        "id": int(episode["id"]),
        "lane": lane,
        "row": row,
        "environment": environment,
        "length": int(episode["length"]),
        "return": float(episode["return"]),
        "terminated": end == "terminated",
        "truncated": end == "truncated",
        "end": end,
    }


def _table(rows: list[dict[str, Any]], where: tuple[str, ...]) -> str:
    heads = ("#", "id", *where, "length", "return", "end")
    texts = [tuple("env" if head == "environment" else head for head in heads)]
    for row in rows:
        cells = (str(row[name]) for name in ("number", "id", *where))
        end = "running" if row["end"] == "open" else row["end"]
        texts.append((*cells, f"{row['length']:,}", number(row["return"]), end))
    return aligned(texts, len(heads) - 1)
