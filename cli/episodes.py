"""``mmreplay episodes``: a table of the episodes."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from .wording import Whole, aligned, echo, echo_json, number, typed

if TYPE_CHECKING:
    import numpy as np

_LARGEST_FIRST = ("return", "length")
_OWN = ("id", "length", "return", "terminated", "truncated")
_SHOWN = 32
_COMPARISON = re.compile(
    r"""\s*([A-Za-z_][\w.-]*)\s*(==|!=|<=|>=|<|>)\s*("[^"]*"|'[^']*'|[^\s'"=<>!]+)\s*(?:and\s+(?=\S)|$)"""
)
_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


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
@click.option(
    "--where",
    metavar="CONDITION",
    help="Only episodes for which this is true: comparisons of columns joined by `and`, as "
    '"success == 1 and return > 10" or "task == \'pick the cube\'".',
)
@click.option("--limit", type=Whole(min=0), help="Show at most this many.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as one JSON object.")
def episodes(
    path: str,
    sort: str,
    reverse: bool,
    where: str | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """List the episodes of the store at PATH.

    # is the number of an episode for other commands and Store.trajectory(). id, row and, in a
    vector store, env are those of its first step; after the return come the fields of the episode.
    An episode is terminated, truncated or still running (its return is the sum so far). Episodes
    that were evicted in part are not listed.
    """
    import numpy as np

    import mmreplay

    with mmreplay.open(path) as store:
        found = store.episodes
        ends = store.endings(found)
        environments = [lane.environments for lane in store.lanes]
        has_evicted = any(lane.first for lane in store.lanes)
    keys = ends if sort == "end" else found[sort]
    if sort in _LARGEST_FIRST:  # NaN counts as the smallest
        keys = np.where(np.isnan(keys), np.inf, -keys.astype(np.float64))
    order = np.argsort(keys, kind="stable")  # equal ones in the order of their ids
    order = order[::-1] if reverse else order
    rows = [_row(index, found[index], str(ends[index]), environments) for index in order.tolist()]
    if where is not None:
        rows = _fitting(where, rows, found.dtype)
    n_found, rows = len(rows), rows[:limit]
    if as_json:
        echo_json({"path": path, "total": n_found, "episodes": [_plain(row) for row in rows]})
        return
    fields = [name for name in found.dtype.names or () if name not in (*_OWN, "started")]
    fields = [name for name in fields if not found.dtype[name].shape]
    columns = ("lane", "row", "environment")[: 3 if max(environments) > 1 else 2]
    lines = [_table(rows, columns, fields)]
    if left := n_found - len(rows):
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
        **{name: episode[name] for name in episode.dtype.names or () if name not in _OWN},
    }


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON, which has neither NaN nor infinity."""
    values = {name: getattr(value, "tolist", lambda v=value: v)() for name, value in row.items()}
    return {name: _finite(value) for name, value in values.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fitting(
    where: str, rows: list[dict[str, Any]], dtype: np.dtype[np.void]
) -> list[dict[str, Any]]:
    """The rows that fulfil a condition; `dtype` has the names of the columns."""
    at, own = 0, dtype.names or ()
    names = {"number", "lane", "row", "environment", "end", *own}
    texts = {"end", *(name for name in own if dtype[name].kind == "U")}
    while at < len(where) or not at:
        match = _COMPARISON.match(where, at)
        if match is None:
            raise click.BadParameter(
                f"expected NAME OPERATOR VALUE, joined by `and`, with one of "
                f"{' '.join(_OPERATORS)}; found {where[at:]!r:.80}",
                param_hint="--where",
            )
        name, sign, text = match.groups()
        name, at = "environment" if name == "env" else name, match.end()
        is_text = name in texts
        value: Any = text[1:-1] if text[0] in "'\"" else text if is_text else typed(text)
        if name not in names:
            problem = f"there is no such column; expected one of {', '.join(sorted(names))}"
        elif is_text and sign not in ("==", "!="):
            problem = f"is a text, which is compared with == and !=; found {sign}"
        elif name in own and dtype[name].shape:
            problem = "has several values for each episode, which cannot be compared"
        elif isinstance(value, str) is not is_text:
            problem = f"expected a number, found {text}"
        else:
            problem = ""
        if problem:
            raise click.BadParameter(f"{name}: {problem}", param_hint="--where")
        if (name, value) == ("end", "running"):
            value = "open"
        rows = [row for row in rows if _OPERATORS[sign](row[name], value)]
    return rows


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value if len(value) <= _SHOWN else f"{value[: _SHOWN - 1]}\N{HORIZONTAL ELLIPSIS}"
    return number(float(value)) if value.dtype.kind == "f" else str(value)


def _table(rows: list[dict[str, Any]], where: tuple[str, ...], fields: list[str]) -> str:
    heads = ("#", "id", *where, "length", "return", *fields, "end")
    texts = [tuple("env" if head == "environment" else head for head in heads)]
    for row in rows:
        cells = (str(row[name]) for name in ("number", "id", *where))
        end = "running" if row["end"] == "open" else row["end"]
        more = (_cell(row[name]) for name in fields)
        texts.append((*cells, f"{row['length']:,}", number(row["return"]), *more, end))
    return aligned(texts, len(heads) - 1)
