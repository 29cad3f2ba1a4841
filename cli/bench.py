"""``mmreplay bench``: measure how fast this machine samples from a store."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from .wording import Whole, echo_json, echo_table, grid, size

if TYPE_CHECKING:
    import mmreplay

_WARM_UP_BATCHES = 16


@click.command("bench")
@click.argument("path", type=click.Path())
@click.option(
    "--batch-size",
    type=Whole(1, 65_536),
    default=32,
    show_default=True,
    help="Transitions per batch.",
)
@click.option(
    "--stack",
    type=Whole(1, 1024),
    help="Frames per stack.  [default: 4 for gray images, else no stacks]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600, min_open=True),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to sample.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def bench(path: str, batch_size: int, stack: int | None, seconds: float, as_json: bool) -> None:
    """Measure how fast this machine samples from the store at PATH.

    Each batch reuses the arrays of the batch before. The first batch is timed separately: it opens
    files, and its pages come from the disk unless they are cached.
    """
    import mmreplay

    settings: dict[str, Any] = {} if stack is None else {"stack": stack}
    with mmreplay.load(path, seed=0, **settings) as data:
        result = {"path": path, **measure(data, batch_size, seconds)}
    if as_json:
        echo_json(result)
    else:
        _print(result)


def measure(data: mmreplay.Dataset, batch_size: int, seconds: float) -> dict[str, Any]:
    """Time at least one batch, and more until the seconds are over; EmptyBufferError if empty."""
    import numpy as np

    times: list[int] = []

    def sample(out: mmreplay.Batch | None) -> mmreplay.Batch:
        started = time.perf_counter_ns()
        batch = data.sample(batch_size, out=out)
        times.append(time.perf_counter_ns() - started)
        return batch

    batch = sample(None)
    first = times.pop()
    for most in (_WARM_UP_BATCHES, sys.maxsize):
        times.clear()
        stop = time.perf_counter() + seconds
        while not times or (len(times) < most and time.perf_counter() < stop):
            sample(batch)
    per_s = 1e9 * len(times) / sum(times)
    p10, median, p90 = (np.percentile(times, (10, 50, 90)) / 1e3).tolist()
    fields = data.store.info()["fields"]
    codecs = {field["codec"] for name, field in fields.items() if name.startswith("frames")}
    observations = batch.observation, batch.next_observation
    parts = [one.values() if isinstance(one, dict) else [one] for one in observations]
    return {
        "transitions": len(data),
        "batch_size": batch_size,
        "stack": data.settings.stack,
        "codec": ", ".join(sorted(codecs)),
        "batches": len(times),
        "batches_per_s": per_s,
        "transitions_per_s": per_s * batch_size,
        "first_us": first / 1e3,
        "median_us": median,
        "p10_us": p10,
        "p90_us": p90,
        "frame_bytes_per_s": per_s * sum(one.nbytes for some in parts for one in some),
    }


def _print(result: Mapping[str, Any]) -> None:
    spread = f"{_us(result['p10_us'])} to {_us(result['p90_us'])}"
    rows = [
        ("transitions/s", f"{result['transitions_per_s']:,.0f}"),
        ("batches/s", f"{result['batches_per_s']:,.0f}"),
        ("one batch", f"{_us(result['median_us'])} median, {spread} for 80%"),
        ("the first batch", _us(result["first_us"])),
        ("frames", f"{size(result['frame_bytes_per_s'])}/s as observation and next observation"),
    ]
    frames = "single frames" if result["stack"] is None else f"stacks of {result['stack']}"
    echo_table(
        f"{result['path']}: {result['transitions']:,} transitions, frames {result['codec']}",
        f"batches of {result['batch_size']}, {frames}",
        "",
        grid(rows),
    )


def _us(value: float) -> str:
    thousand = 1000
    return f"{value:.0f} us" if value < thousand else f"{value / thousand:.1f} ms"
