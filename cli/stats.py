"""``mmreplay stats``: mean, deviation, bounds and quantiles of the fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from .wording import aligned, count, echo, echo_json, number

if TYPE_CHECKING:
    from mmreplay import Statistics

_QUANTILES = (0.01, 0.99)
_SHOWN = 32  # elements of a field in rows of their own


@click.command("stats")
@click.argument("paths", metavar="PATH...", type=click.Path(), nargs=-1, required=True)
@click.option(
    "--fields",
    metavar="NAME,NAME",
    multiple=True,
    help="Only these: observation, or observation.KEY of a dict, action, reward, and extras by "
    "name; others are not read.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def stats(paths: Sequence[str], fields: Sequence[str], as_json: bool) -> None:
    """Show mean, deviation, bounds and quantiles of what the stores at PATH... hold.

    Of each element, over all transitions: the values before each step, without NaN and infinity,
    which are counted. Of images a sample of at most 1,000 is read. Fields with more than 32
    elements are shown in one line; --json has each element.
    """
    import mmreplay

    names = [name for text in fields for name in text.split(",")] or None
    with mmreplay.load(list(paths)) as data:
        found, n = data.statistics(names, _QUANTILES), len(data)
    if as_json:
        each = {name: one.to_json() for name, one in found.items()}
        echo_json({"paths": paths, "transitions": n, "quantiles": _QUANTILES, "fields": each})
        return
    rows: list[tuple[str, ...]] = [
        ("field", "mean", "std", "min", "1 %", "99 %", "max", "not finite")
    ]
    rows += [row for name, one in found.items() for row in _rows(name, one)]
    if not any(one.n_nonfinite.any() for one in found.values()):
        rows = [row[:-1] for row in rows]
    lines = [f"{', '.join(paths)}: {count(n, 'transition')}", "", aligned(rows, 0)]
    lines += [
        f"{name}: a random sample of {count(one.count, 'transition')}"
        for name, one in found.items()
        if one.sampled
    ]
    echo("\n".join(lines))


def _rows(name: str, one: Statistics) -> Iterator[tuple[str, ...]]:
    """A row for each element, or a single one for many."""
    import numpy as np

    if one.mean.size <= _SHOWN:
        for index in np.ndindex(one.mean.shape):
            place = f"[{','.join(map(str, index))}]" if index else ""
            values = [one.mean, one.std, one.min, *one.quantiles, one.max]
            cells = [_number(part[index]) for part in values]
            yield f"{name}{place}", *cells, f"{one.n_nonfinite[index]:,}"
        return
    some = np.isfinite(one.mean)
    n, mean = some.sum() or np.nan, one.mean[some]
    center = mean.sum() / n
    spread = np.sqrt((one.std[some] ** 2 + (mean - center) ** 2).sum() / n)
    low, high = one.min[some].min(initial=np.inf), one.max[some].max(initial=-np.inf)
    cells = [_number(center), _number(spread), _number(low), "", "", _number(high)]
    yield f"{name}, all {one.mean.size:,}", *cells, f"{one.n_nonfinite.sum():,}"


def _number(value: float) -> str:
    return number(float(value)) if math.isfinite(value) else "none"
