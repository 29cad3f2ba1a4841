"""Prioritized sampling: beside cpprb's tree and batches, and as the number of rows grows.

Ids and weights alone, an update alone, and the whole batch of four-frame stacks. cpprb keeps its
frames in RAM, each once (`stack_compress`, `next_of`), as its users would set it; ours come from
raw frames on disk. Both have as many transitions, the same batch size, alpha and beta. The random
numbers of the errors are drawn outside of what is timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import mmreplay
from benchmarks.experience import Tape, light_rows, made, play, read_tape, recorded
from benchmarks.naive import check_batch
from benchmarks.peers import installed as peers
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core

__all__ = ["run"]

BATCH = 32
LARGE = 256
STACK = 4
ALPHA, BETA = 0.6, 0.4
_SAMPLE, _UPDATE, _GROWTH = 1.5, 2.0, 2.0
_CHECK_EVERY = 50
_EPSILON = 1e-6


def run(result: Result, scale: Scale, data: Path) -> None:
    """The trees, then whole batches, then what grows with the rows."""
    has_peer = peers.is_cpprb_installed()
    _trees(result, scale, data, has_peer=has_peer)
    _batches(result, scale, data, has_peer=has_peer)
    _growth(result, scale, data)


@contextmanager
def _opened(path: Path, **settings: Any) -> Iterator[mmreplay.PrioritizedReplayBuffer]:
    """The buffer of a store, every transition with a priority of its own."""
    given = {"stack": None, "flush_s": 0, "alpha": ALPHA, "beta": BETA}
    with mmreplay.PrioritizedReplayBuffer(path, **(given | settings)) as buffer:
        buffer.update_priorities(buffer.ids, np.random.default_rng(0).random(len(buffer)))
        yield buffer


Drawn = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]


def _draw(buffer: mmreplay.PrioritizedReplayBuffer, size: int) -> Drawn:
    """Ids and weights: all that `sample` does before it reads."""
    draws = buffer.generator.random(size)
    sampler = buffer.sampler

    def draw(index: Any) -> Drawn:
        ids, probabilities = sampler.draw(index, draws)
        return ids, sampler.weights(probabilities)(BETA)

    return buffer.store.live.look(draw)


def _check_weights(buffer: Any, ids: Any, weights: Any) -> None:
    """By the definition of the proportional variant."""
    masses = buffer.priorities(buffer.ids) ** ALPHA
    own = buffer.priorities(ids) ** ALPHA
    expected = (len(buffer) * own / masses.sum()) ** -BETA
    np.testing.assert_allclose(weights, expected / expected.max(), rtol=1e-6)


def _check_update(buffer: Any, ids: Any, errors: Any) -> None:
    last = dict(zip(ids.tolist(), errors.tolist(), strict=True))
    expected = np.array(list(last.values())) + _EPSILON
    assert np.array_equal(buffer.priorities(list(last)), expected)


def _trees(result: Result, scale: Scale, data: Path, *, has_peer: bool) -> None:
    n = scale.priority_rows
    path = light_rows(data, n)
    clock, random = Clock(), np.random.default_rng(1)
    peer = peers.tree(n, ALPHA) if has_peer else None
    with one_core(), _opened(path) as buffer:
        for number in range(scale.runs):
            clock.new_run()
            for turn in range(scale.rounds * 5):
                errors = random.random(BATCH)
                ids, weights = clock.time("sample", lambda: _draw(buffer, BATCH))
                if turn % (_CHECK_EVERY * 5) == 0:
                    _check_weights(buffer, ids, weights)
                clock.time("update", partial(buffer.update_priorities, ids, errors))
                if turn % _CHECK_EVERY == 0:
                    _check_update(buffer, ids, errors)
                if peer is not None:
                    drawn = clock.time("peer sample", lambda: peer.sample(BATCH, beta=BETA))
                    places = drawn["indexes"]
                    clock.time("peer update", partial(peer.update_priorities, places, errors))
            print(f"{n:,} rows: run {number + 1} of {scale.runs}", flush=True)
    for name, does, bound in (
        ("sample", "ids and weights", _SAMPLE),
        ("update", "update", _UPDATE),
    ):
        what = f"{n:,} rows, {does} of {BATCH}"
        result.add(what, clock.microseconds(name), "us")
        if has_peer:
            result.add(f"{what}, {peers.CPPRB}", clock.microseconds(f"peer {name}"), "us")
            ratio = clock.ratio(name, f"peer {name}")
            result.add(f"{what}, by {peers.CPPRB}'s", ratio, "times", at_most=bound)


def _batches(result: Result, scale: Scale, data: Path, *, has_peer: bool) -> None:
    game = scale.games[0]
    tape = read_tape(recorded(data, game, "raw", scale))
    n = min(scale.peer_rows, len(tape))
    path = made(data / f"{game}-{n}-prioritized.zarr", lambda there: _write(there, tape, n))
    whole = tape.first(n)
    peer = peers.prioritized_stacks(whole, STACK, ALPHA) if has_peer else nullcontext()
    clock, random = Clock(), np.random.default_rng(1)
    with one_core(), peer as theirs, _opened(path, stack=STACK) as buffer:
        for row in range(0, n, 4096):
            _ = buffer.store.frames[row : row + 4096]  # type: ignore[index]
        kept = buffer.sample(BATCH)
        calls = {
            "fresh": lambda: buffer.sample(BATCH),
            "kept": lambda: buffer.sample(BATCH, out=kept),
        }
        if theirs is not None:
            calls["peer"] = lambda: theirs.sample(BATCH, beta=BETA)
        last: dict[str, Any] = {}
        for _ in range(scale.runs):
            clock.new_run()
            for turn in range(scale.rounds):
                # In any order: each leaves the processor's cache full of its own.
                for name in random.permutation(sorted(calls)):
                    last[name] = clock.time(name, calls[name])
                batch = last["fresh"]
                if turn % _CHECK_EVERY == 0:
                    _check_weights(buffer, batch.id, batch.weight.astype(np.float64))
                    plain = buffer.transitions(batch.id)
                    check_batch(plain, whole, stack=STACK, n_step=1)
                    assert np.array_equal(plain.observation, batch.observation)
                    assert np.array_equal(plain.next_observation, batch.next_observation)
                buffer.update_priorities(batch.id, random.random(BATCH))
                if theirs is not None:
                    theirs.update_priorities(last["peer"]["indexes"], random.random(BATCH))
    what = f"{game}, {n:,} rows: a batch of {BATCH} with stacks of {STACK}"
    if has_peer:
        result.add(f"{what}, {peers.CPPRB}", clock.microseconds("peer"), "us")
    for name, how in (("kept", "out="), ("fresh", "without out=")):
        result.add(f"{what}, {how}", clock.microseconds(name), "us")
        if has_peer:
            ratio = clock.ratio(name, "peer")
            result.add(f"{what}, {how}, by {peers.CPPRB}'s", ratio, "times", at_most=1.0)


def _write(path: Path, tape: Tape, n: int) -> None:
    with mmreplay.create(
        path,
        frame=mmreplay.Field(tape.frames.shape[1:], "uint8", "raw"),
        action=mmreplay.Field((), "int64"),
    ) as writer:
        play(tape, writer, 0, n)


def _growth(result: Result, scale: Scale, data: Path) -> None:
    """The same update in a small and in a large buffer, in turns."""
    sizes = (scale.few_rows, scale.many_rows)
    paths = [light_rows(data, n) for n in sizes]
    clock, random = Clock(), np.random.default_rng(1)
    with one_core(), _opened(paths[0]) as few, _opened(paths[1]) as many:
        turns = [("few", few, few.ids), ("many", many, many.ids)]
        for number in range(scale.runs):
            clock.new_run()
            for turn in range(scale.rounds * 5):
                errors = random.random(LARGE)
                for name, buffer, every in turns:
                    ids = every[random.integers(0, len(every), LARGE)]
                    clock.time(name, partial(buffer.update_priorities, ids, errors))
                    if turn % _CHECK_EVERY == 0:
                        _check_update(buffer, ids, errors)
            print(f"growth: run {number + 1} of {scale.runs}", flush=True)
    for which, average in (("median", np.median), ("99th percentile", _tail)):
        what = f"proportional: update of {LARGE}, {which}"
        for name, n in zip(("few", "many"), sizes, strict=True):
            result.add(f"{what}, {n:,} rows", clock.microseconds(name, average), "us")
        ratio = clock.ratio("many", "few", average)
        result.add(f"{what}, many by few", ratio, "times", at_most=_GROWTH)


def _tail(seconds: npt.NDArray[Any]) -> Any:
    return np.percentile(seconds, 99)
