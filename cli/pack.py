"""``mmreplay pack``: episodes of stores joined, filtered and compressed again in one store."""

from __future__ import annotations

import itertools
import re

import click

from .progress import progress
from .whole_number import WholeNumber
from .wording import count, echo_json, size

__all__ = ["pack"]

_RANGE = re.compile(r"([0-9]{1,12})(?:-([0-9]{1,12}))?\Z")
_MOST = 100_000_000


def _numbers(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> list[int] | None:
    """Whole numbers and ranges of them."""
    if value is None:
        return None
    out: list[range] = []
    for part in value.split(","):
        found = _RANGE.match(part.strip())
        first, last = (int(one or found[1]) for one in found.groups()) if found else (1, 0)
        if first > last:
            raise click.BadParameter(f"expected numbers and ranges as in 3,10-19, found {value!r}")
        out.append(range(first, last + 1))
    if sum(map(len, out)) > _MOST:
        raise click.BadParameter(f"expected at most {_MOST:,} numbers, found {value!r}")
    return list(itertools.chain.from_iterable(out))


@click.command("pack")
@click.argument("sources", metavar="SRC...", type=click.Path(), nargs=-1, required=True)
@click.argument("target", metavar="DST", type=click.Path())
@click.option(
    "--codec",
    metavar="NAME[:LEVEL]",
    help="How frames are kept: raw, lz4, zstd, or with a level, as zstd:9.  [default: as they are]",
)
@click.option("--chunk-frames", type=WholeNumber(min=1), help="Frames compressed together.")
@click.option("--shard-frames", type=WholeNumber(min=1), help="Frames a file.")
@click.option("--min-return", type=float, help="Keep the episodes with at least this return.")
@click.option(
    "--episodes",
    callback=_numbers,
    metavar="N,N-N",
    help="Keep the episodes with these numbers, as `mmreplay episodes` has them: 0-99,250. Of "
    "several stores they are counted one after the other.",
)
@click.option(
    "--env",
    "envs",
    callback=_numbers,
    metavar="N,N-N",
    help="Keep the episodes of these environments, counted from 0 over all lanes.",
)
@click.option(
    "--capacity", type=WholeNumber(min=1), help="Keep this many transitions at most, the newest."
)
@click.option(
    "--workers",
    type=WholeNumber(min=1),
    help="Threads that compress.  [default: one a processor]",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was made as one JSON object.")
def pack(
    sources: tuple[str, ...],
    target: str,
    codec: str | None,
    chunk_frames: int | None,
    shard_frames: int | None,
    min_return: float | None,
    episodes: list[int] | None,
    envs: list[int] | None,
    capacity: int | None,
    workers: int | None,
    as_json: bool,
) -> None:
    """Write the episodes of the stores at SRC... into one closed store at DST.

    All whole episodes, or those chosen, follow one another there, with new ids. Sources may be
    live, and are not changed.
    """
    import mmreplay

    with progress("pack") as show:
        made = mmreplay.pack(
            sources,
            target,
            codec,
            min_return,
            episodes,
            workers,
            capacity=capacity,
            envs=envs,
            chunk_frames=chunk_frames,
            shard_frames=shard_frames,
            progress=show,
        )
    if as_json:
        echo_json(made.to_json())
        return
    left = f", {made.left_out:,} left out" if made.left_out else ""
    click.echo(
        f"{made.path}: {count(made.transitions, 'transition')} in "
        f"{count(made.episodes, 'episode')}{left}; {size(made.bytes_on_disk)}, "
        f"the {'sources' if len(sources) > 1 else 'source'} {size(made.source_bytes)}"
    )
