"""``mmreplay pack``: copy, merge, filter and recompress stores."""

from __future__ import annotations

import itertools
import re
from typing import Any

import click

from .wording import Whole, count, echo_result, progress, size, times

_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?\Z")
_MOST = 100_000_000


def numbers(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> list[int] | None:
    """Parse whole numbers and ranges."""
    if value is None:
        return None
    out: list[range] = []
    for part in value.split(","):
        found = _RANGE.match(part.strip())
        first, last = (int(one or found[1]) for one in found.groups()) if found else (1, 0)
        out.append(range(first, last + 1))
    if not all(out) or sum(map(len, out)) > _MOST:
        raise click.BadParameter(
            f"expected numbers and ranges such as 3,10-19, at most {_MOST:,}; found {value!r}"
        )
    return list(itertools.chain.from_iterable(out))


@click.command("pack")
@click.argument("sources", metavar="SRC...", type=click.Path(), nargs=-1, required=True)
@click.argument("target", metavar="DST", type=click.Path())
@click.option(
    "--codec",
    metavar="NAME[:LEVEL]",
    help="Compression of frames: raw, lz4, zstd, or with a level: zstd:9.  [default: as in SRC]",
)
@click.option("--chunk-frames", type=Whole(min=1), help="Frames compressed together.")
@click.option("--shard-frames", type=Whole(min=1), help="Frames per file.")
@click.option("--min-return", type=float, help="Keep the episodes with at least this return.")
@click.option(
    "--episodes",
    callback=numbers,
    metavar="N,N-N",
    help="Keep these episodes, numbered as in `mmreplay episodes`, for example 0-99,250. "
    "With several stores, each continues the numbering of the one before.",
)
@click.option(
    "--env",
    "envs",
    callback=numbers,
    metavar="N,N-N",
    help="Keep the episodes of these environments of vector stores, counted from 0.",
)
@click.option("--capacity", type=Whole(min=1), help="Keep at most this many steps, the newest.")
@click.option(
    "--leave-out", metavar="NAME", multiple=True, help="Leave out this extra column; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was made as one JSON object.")
def pack(sources: tuple[str, ...], target: str, as_json: bool, **settings: Any) -> None:
    """Copy the episodes of the stores at SRC... into one new store at DST.

    It contains all whole episodes, or those chosen, with new ids. The sources may be in use, and
    are not changed.
    """
    import mmreplay

    with progress("pack") as show:
        made = mmreplay.pack(sources, target, progress=show, **settings)
    left = f", {made.left_out:,} left out" if made.left_out else ""
    than = f"the {'sources' if len(sources) > 1 else 'source'}"
    more = made.bytes_on_disk / max(made.source_bytes, 1)
    grown = f"; {times(1 / more)} {than}" if more > 1 else ""
    text = (
        f"{made.path}: {count(made.transitions, 'transition')} in "
        f"{count(made.episodes, 'episode')}{left}; {size(made.bytes_on_disk)}, {than} "
        f"{size(made.source_bytes)}{grown}"
    )
    echo_result(made, text, as_json=as_json)
