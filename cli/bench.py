"""``mmreplay bench``: how fast this machine samples from this store.

The yardstick is one ``np.take`` of the same number of frames, as a batch's stacks need them, from
an array in memory into a kept array. Both are timed in turns, in the same run, and so are batches
whose parts are timed one by one: where the time goes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from .whole_number import WholeNumber
from .wording import amount, count, echo_json, echo_table, grid, size, table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    import mmreplay

_RAM_BYTES = 256 << 20
"""Frames kept in memory for the yardstick: many times a processor's cache."""
_INDICES = 128
"""Different frames to take; always the same ones would lie in the cache."""
_TURN = 8
_WARM_UP_BATCHES = 16
_PARTS = {"index": "index", "io": "I/O", "decode": "decode", "copy": "copy", "other": "other"}
"""Of a batch, as `Dataset.sample_times` calls them and as people do."""


def _seconds(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    # FloatRange lets NaN through, which is neither too small nor too large.
    if math.isnan(value):
        raise click.BadParameter("nan is no number of seconds")
    return value


@click.command("bench")
@click.argument("path", type=click.Path())
@click.option("--batch-size", type=WholeNumber(1, 65_536), default=32, show_default=True)
@click.option(
    "--stack",
    type=WholeNumber(1, 1024),
    help="Frames a stack.  [default: 4 of gray images, none of anything else]",
)
@click.option(
    "--n-step", type=WholeNumber(1, 4096), default=1, show_default=True, help="Steps a return."
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, 3600, min_open=True),
    callback=_seconds,
    default=1.0,
    show_default=True,
    help="How long to sample.",
)
@click.option("--seed", type=WholeNumber(min=0), default=0, show_default=True)
@click.option(
    "--prefetch",
    type=WholeNumber(0, 1024),
    default=0,
    show_default=True,
    help="Batches to read ahead in threads.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def bench(
    path: str,
    batch_size: int,
    stack: int | None,
    n_step: int,
    seconds: float,
    seed: int,
    prefetch: int,
    as_json: bool,
) -> None:
    """Sample uniformly from the store at PATH for a second and say how fast it was.

    Batches are written into the same arrays again and again. As a yardstick, one np.take of as many
    frames from an array in memory is timed in turns with them. The parts of a batch are timed in
    others of the same run: finding the rows (index), getting their pages or chunks (I/O), decoding,
    copying, and other. With --prefetch, batches are read by threads, as many as they can, and their
    parts are timed without.
    """
    import mmreplay

    settings: dict[str, Any] = {"n_step": n_step, "seed": seed}
    if stack is not None:
        settings["stack"] = stack
    with (
        mmreplay.load(path, **settings, prefetch=prefetch) as data,
        mmreplay.load(path, **settings) as alone,
    ):
        result = {"path": path, "prefetch": prefetch, **measure(data, batch_size, seconds, alone)}
    if as_json:
        echo_json(result)
    else:
        _print(result)


def measure(
    data: mmreplay.Dataset, batch_size: int, seconds: float, alone: mmreplay.Dataset
) -> dict[str, Any]:
    """Time batches, the yardstick and the parts of batches in turns.

    Args:
        data: with the settings to use.
        batch_size: B.
        seconds: of all together, about; a batch of each is timed in any case.
        alone: the same store and settings, of which parts are timed: nothing is read ahead of it.

    Raises:
        EmptyBufferError: there is nothing to sample.
    """
    import numpy as np

    batch, spare = data.sample(batch_size), alone.sample(batch_size)
    ours: list[int] = []
    takes: list[int] = []
    parts: list[list[float]] = []

    def sample() -> None:
        data.sample(batch_size, out=batch)

    def time_parts() -> None:
        _, seconds = alone.sample_times(batch_size, out=spare)
        parts.append([seconds[name] * 1e6 for name in _PARTS])

    _time(sample, [], _WARM_UP_BATCHES, seconds)
    time_parts()
    parts.clear()  # what the first one takes longer is no part of a batch
    take = _reference(data, batch)
    take()  # its arrays get their memory now
    stop = time.perf_counter() + seconds
    while not takes or time.perf_counter() < stop:
        for call, into in ((sample, ours), (take, takes)):
            _time(call, into, _TURN, (stop - time.perf_counter()) / 2)
        _time(time_parts, [], _TURN, (stop - time.perf_counter()) / 2)
    times = np.array(ours) / 1e3
    median, low, high = (float(np.percentile(times, at)) for at in (50, 10, 90))
    reference = float(np.median(takes)) / 1e3
    per_s = 1e6 / float(times.mean())
    return {
        "transitions": len(data),
        "batch_size": batch_size,
        "stack": data.settings.stack,
        "n_step": data.settings.n_step,
        "codec": _codecs(data.store),
        "batches": len(ours),
        "batches_per_s": per_s,
        "transitions_per_s": per_s * batch_size,
        "median_us": median,
        "p10_us": low,
        "p90_us": high,
        "take_us": reference,
        "ratio": median / reference,
        "frame_bytes_per_s": per_s * _frame_bytes(batch),
        "parts_us": dict(zip(_PARTS, np.median(np.array(parts), axis=0).tolist(), strict=True)),
    }


def _time(call: Callable[[], object], into: list[int], times: int, seconds: float) -> None:
    """Time some calls; fewer once they have taken so many seconds, but one."""
    stop = time.perf_counter() + seconds
    for _ in range(times):
        start = time.perf_counter_ns()
        call()
        into.append(time.perf_counter_ns() - start)
        if time.perf_counter() > stop:
            break


def _reference(data: mmreplay.Dataset, batch: mmreplay.Batch) -> Callable[[], object]:
    """One np.take for each kind of frame, of as many as the batch has, from memory."""
    import numpy as np

    store, stack = data.store, data.settings.stack or 1
    store_rows = store.lanes[0].rows
    generator = np.random.default_rng(0)
    takes: list[tuple[npt.NDArray[Any], npt.NDArray[np.int64], npt.NDArray[Any]]] = []
    turns = itertools.cycle(range(_INDICES))
    for name, view in _views(store).items():
        row_bytes = int(np.prod(view.shape[1:])) * view.dtype.itemsize
        base = store.lanes[0].base
        kept = max(min(store_rows - base, _RAM_BYTES // row_bytes), 1)
        rows = np.ascontiguousarray(view[store_rows - kept : store_rows])
        # Of many environments a row has a frame of each.
        shape = store.schema.frames[name or "frame"].shape
        frames = rows.reshape(-1, *shape)
        width = _frames_a_sample(batch, name, stack)
        starts = generator.integers(max(len(frames) - width, 1), size=(_INDICES, len(batch), 1))
        index = np.minimum(starts + np.arange(width), len(frames) - 1)
        takes.append((frames, index, np.empty((*index.shape[1:], *frames.shape[1:]), frames.dtype)))

    def take() -> None:
        turn = next(turns)
        for frames, index, out in takes:
            # mode="clip": with the default numpy would buffer the whole output.
            frames.take(index[turn], axis=0, out=out, mode="clip")

    return take


def _views(store: mmreplay.Store) -> Mapping[str, Any]:
    frames = store.lanes[0].frames
    return frames if isinstance(frames, dict) else {"": frames}


def _arrays(batch: mmreplay.Batch, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    now, after = batch.observation, batch.next_observation
    return (
        now[name] if isinstance(now, dict) else now,
        after[name] if isinstance(after, dict) else after,
    )


def _frames_a_sample(batch: mmreplay.Batch, name: str, stack: int) -> int:
    """Frames that were read for one sample: the two stacks share all but one where they can."""
    import numpy as np

    now, after = _arrays(batch, name)
    return stack + 1 if np.may_share_memory(now, after) else 2 * stack


def _frame_bytes(batch: mmreplay.Batch) -> int:
    """Bytes of observation and next observation, as training gets them."""
    names = batch.observation if isinstance(batch.observation, dict) else [""]
    return sum(one.nbytes for name in names for one in _arrays(batch, name))


def _codecs(store: mmreplay.Store) -> str:
    fields = store.info()["fields"]
    names = {one["codec"] for path, one in fields.items() if path.startswith("frames")}
    return ", ".join(sorted(names))


def _print(result: Mapping[str, Any]) -> None:
    spread = f"{_us(result['p10_us'])} to {_us(result['p90_us'])}"
    reference = f"{_us(result['take_us'])} for as many frames"
    rows = [
        ("transitions/s", f"{result['transitions_per_s']:,.0f}"),
        ("batches/s", f"{result['batches_per_s']:,.0f}"),
        ("a batch", f"{_us(result['median_us'])} median, {spread} for 8 of 10"),
        ("np.take in RAM", f"{reference}; a batch takes {amount(result['ratio'])} times that"),
        ("frames", f"{size(result['frame_bytes_per_s'])}/s as observation and next observation"),
    ]
    parts = result["parts_us"]
    whole = sum(parts.values()) or 1.0
    shares = [
        (words, _us(parts[name]), f"{100 * parts[name] / whole:.0f} %")
        for name, words in _PARTS.items()
    ]
    steps = count(result["n_step"], "step")
    ahead = f", {result['prefetch']} read ahead" if result["prefetch"] else ""
    frames = "single frames" if result["stack"] is None else f"stacks of {result['stack']}"
    from_calls = whole - parts["io"] - parts["decode"] - parts["copy"]
    advice = (
        [
            "",
            "Most of it is what a call costs, whatever the size of the batch: a larger",
            "--batch-size gives more transitions a second",
        ]
        if from_calls > whole / 2
        else []
    )
    sizes = f"batches of {result['batch_size']}{ahead}, {frames}"
    echo_table(
        f"{result['path']}: {result['transitions']:,} transitions, frames {result['codec']}",
        f"{sizes}, returns of {steps}",
        "",
        grid(rows),
        "",
        table(("where it goes", "a batch", "share"), shares, right=(1, 2)),
        *advice,
    )


def _us(value: float) -> str:
    thousand = 1000
    return f"{value:.0f} us" if value < thousand else f"{value / thousand:.1f} ms"
