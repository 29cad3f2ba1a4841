"""Whole epochs of `batches(256)`, beside stable-baselines3 that samples as much from RAM.

A batch is timed with what it decodes, and a run's figure is the mean over an epoch, as the first
batches of a pool decode most. How far the order of blocks is from a permutation of everything is
measured by what a batch has of one stretch of steps, and by what a learner makes of it.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import mmreplay
from benchmarks import fresh, naive
from benchmarks.experience import (
    CODECS,
    ENVIRONMENT_SPEED,
    Layout,
    Tape,
    one_lane,
    read_all,
    read_tape,
    recorded,
)
from benchmarks.learner import Learner, examples
from benchmarks.peers import installed as peers
from benchmarks.results import Result
from benchmarks.sizes import Scale
from benchmarks.timing import Clock, one_core, spread
from mmreplay.storage.shard_column import ShardColumn
from tests.support.epoch_stores import n_chunks

__all__ = ["run"]

BATCH = 256
STACK = 4
GROUP = 8
NEAR = 64
"""Steps: as far apart in one episode, two transitions of a batch are near each other."""
ORDERS: dict[str, dict[str, Any]] = {
    "blocks": {},
    "blocks, pools of 4,096 rows": {"shuffle_rows": 4096},
    "full": {"shuffle": "full"},
    "not shuffled": {"shuffle": False},
}
_PEER = f"{peers.NAME}.sample({BATCH})"
_BOUNDS = {"raw": 1.0, "lz4": 1.0, "zstd": 1 / 0.7}
_CHECK_EVERY = 50
_POOL_MB = 192 * 1.048576 * 4 / 3 + 64


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    name: str
    codec: str
    path: Path
    layout: Layout


def run(result: Result, scale: Scale, data: Path) -> None:
    """Speed of every game, then memory and order of the first."""
    has_peer = peers.is_installed()
    for game in scale.games:
        tape = read_tape(recorded(data, game, "raw", scale))
        peer = None
        if has_peer:
            peer = peers.StackedBuffer(tape, scale.peer_rows, STACK)
            peer.fill(lambda: 0.0)
        cases = _cases(data, game, tape, scale)
        clock = Clock()
        with one_core():
            for number in range(scale.runs):
                clock.new_run()
                random.Random(number).shuffle(cases)
                for case in cases:
                    _one_run(clock, case, tape, scale.rounds, number, peer)
                print(f"{game}: run {number + 1} of {scale.runs}", flush=True)
        for case in sorted(cases, key=lambda one: one.name):
            _report(result, clock, game, case, has_peer=has_peer)
        if has_peer:
            result.add(f"{game}, {_PEER}", clock.microseconds(_PEER, np.mean), "us")
    game = scale.games[0]
    for codec in CODECS:
        path = recorded(data, game, codec, scale)
        taken = fresh.call("epoch", path=path, batch=BATCH)["taken"]
        most = max(one["anon"] for one in taken) - taken[0]["anon"]
        result.details[f"memory, {codec}"] = taken
        result.add(f"an epoch, {codec}: more anonymous memory", most / 1e6, "MB", at_most=_POOL_MB)
    _orders(result, recorded(data, game, "lz4", scale), scale)


def _cases(data: Path, game: str, tape: Tape, scale: Scale) -> list[_Case]:
    cases = []
    for codec in CODECS:
        path, _ = one_lane(data, game, codec, tape, ENVIRONMENT_SPEED)
        cases.append(_Case(f"one writer, {codec}", codec, path, Layout.ONE))
        path = recorded(data, game, codec, scale)
        cases.append(_Case(f"{scale.envs} environments, {codec}", codec, path, Layout.VECTOR))
    return cases


def _one_run(clock: Clock, case: _Case, tape: Tape, rounds: int, number: int, peer: Any) -> None:
    """One epoch of blocks, and as many batches of other kinds as there are rounds."""
    with mmreplay.load(case.path, stack=STACK, seed=number) as opened:
        read_all(opened.store)
        full = opened.batches(BATCH, None, shuffle="full")
        blocks, n_batches = opened.batches(BATCH, epoch=0), -(-len(opened) // BATCH)
        for turn in range(n_batches):
            batch = clock.time(case.name, lambda: next(blocks))
            if turn % _CHECK_EVERY == 0:
                naive.check_batch(batch, tape, case.layout)
            if peer is not None:
                clock.time(_PEER, lambda: peer.sample(BATCH))
            if turn < rounds:
                clock.time(f"{case.name}, full", lambda: next(full))
                batch = clock.time(
                    f"{case.name}, groups", lambda: opened.sample(BATCH, group=GROUP)
                )
                if turn % _CHECK_EVERY == 0:
                    naive.check_batch(batch, tape, case.layout)
        assert next(blocks, None) is None


def _report(result: Result, clock: Clock, game: str, case: _Case, *, has_peer: bool) -> None:
    name = f"{game}, {case.name}"
    result.add(f"{name}: a batch", clock.microseconds(case.name, np.mean), "us")
    per_s = spread(BATCH / clock.by_run(case.name, np.mean))
    result.add(f"{name}: transitions", per_s, "1/s")
    if has_peer:
        ratio = clock.ratio(case.name, _PEER, np.mean)
        result.add(f"{name}, by {peers.NAME}'s", ratio, "times", at_most=_BOUNDS[case.codec])
    result.add(
        f"{name}, full, by blocks", clock.ratio(f"{case.name}, full", case.name, np.mean), "times"
    )
    result.add(
        f"{name}, groups of {GROUP}, by blocks",
        clock.ratio(f"{case.name}, groups", case.name, np.mean),
        "times",
    )
    if case.codec != "raw":
        with mmreplay.load(case.path, stack=STACK) as opened, _counted_decodes() as counts:
            ids = np.concatenate([batch.id for batch in opened.batches(BATCH)])
            assert np.array_equal(np.sort(ids), opened.ids)
            found = counts["chunks"] / n_chunks(opened)
        result.add(f"{name}: decodes of a chunk in an epoch", found, "", at_most=1.3)


@contextmanager
def _counted_decodes() -> Iterator[dict[str, int]]:
    """Count the inner chunks that are decoded meanwhile."""
    counts, decode = {"chunks": 0}, ShardColumn._decode_chunk

    def counting(*arguments: Any) -> bool:
        is_decoded = decode(*arguments)
        counts["chunks"] += is_decoded
        return is_decoded

    with mock.patch.object(ShardColumn, "_decode_chunk", counting):
        yield counts


# ---------------------------------------------------------------- how well it is shuffled


def _orders(result: Result, path: Path, scale: Scale) -> None:
    """What is near each other in a batch, and how a learner does, in each order."""
    shown = examples(path)
    for name, how in ORDERS.items():
        near, losses = [], []
        for seed in range(scale.runs):
            learner = Learner(shown, seed)
            losses.append([learner.loss()])
            with mmreplay.load(path, stack=None, seed=seed) as opened:
                for _ in range(scale.learner_epochs):
                    for batch in opened.batches(BATCH, **how):
                        near.append(_near(opened, batch.id))
                        learner.learn(batch.id)
                    losses[-1].append(learner.loss())
        result.details[f"losses, {name}"] = losses
        result.add(f"{name}: others of the batch within {NEAR} steps", np.mean(near), "")
        for number in range(1, scale.learner_epochs + 1):
            after = spread([one[number] for one in losses])
            result.add(f"{name}: loss after {number} epochs", after, "")


def _near(opened: mmreplay.Dataset, ids: Any) -> float:
    """How many others of a batch are near a transition, on average."""
    rows, envs = np.divmod(ids, opened.store.lanes[0].environments)
    place = np.sort(envs * (1 << 32) + rows)
    within = place.searchsorted(place + NEAR, "right") - np.arange(ids.size) - 1
    return 2 * float(within.mean())
