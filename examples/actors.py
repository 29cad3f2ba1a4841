"""Actors and a learner on one machine, without a server: each actor writes a lane of one store.

    python examples/actors.py [FOLDER] [--actors 3] [--batches 1500] [--samples-per-step 8]

Actors are processes that record CartPole with `create(path, lane=NAME)`; the learner reads all
lanes as they grow, and sends weights back as a file that is exchanged at once. Both sides stay
within a margin of `--samples-per-step`: the learner waits for steps, and actors for the learner.
An actor that is killed is started again, and goes on in its lane. The learner is a linear one, so
that the example needs nothing else: put yours into `learn`. On several machines the same is
`mmreplay.distributed` (docs/distributed.md). The last line that it prints is the result as JSON.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np

import mmreplay

BATCH_SIZE, MARGIN, N_ACTIONS, GAMMA, RATE = 64, 4_096, 2, 0.95, 0.3


def features(observation):
    """(B, 9) of (B, 4): the observation, scaled and squared, and a one."""
    x = np.clip(np.asarray(observation) / (2.4, 3, 0.2, 3), -2, 2)
    return np.concatenate([x, x * x, np.ones((*x.shape[:-1], 1))], axis=-1)


def learn(weights, batch):
    """A step of semi-gradient Q-learning with a linear function."""
    x, y = features(batch.observation), features(batch.next_observation)
    target = batch.reward + batch.discount * (y @ weights).max(-1)
    error = target - (x @ weights)[np.arange(len(x)), batch.action]
    for action in range(N_ACTIONS):
        chosen = batch.action == action
        weights[:, action] += RATE * (error * chosen) @ x / len(x)


def publish(path, weights):
    """Exchange the file, so that no actor reads half of it."""
    with (staged := path.with_suffix(".tmp")).open("wb") as file:
        np.save(file, weights)
    staged.replace(path)


def act(folder, number, n_actors, samples, samples_per_step):
    """Play until the learner says so; `samples` is what it has drawn, or -1 at the end."""
    env = gymnasium.make("CartPole-v1")
    rng, path, weights, read_at = np.random.default_rng(), folder / "weights.npy", None, None
    with mmreplay.create(folder / "run.zarr", env=env, lane=f"actor-{number}") as writer:
        recorded = mmreplay.RecordExperience(env, writer)
        observation, _ = recorded.reset()
        while (drawn := samples.value) >= 0:
            # The lane says how many steps there were, also those of a process that was killed.
            if writer.rows * n_actors * samples_per_step > drawn + MARGIN:
                time.sleep(0.002)
                continue
            if writer.rows % 64 == 0 and read_at != (newest := path.stat().st_mtime_ns):
                weights, read_at = np.load(path), newest
            action = int(rng.integers(N_ACTIONS))
            if weights is not None and rng.random() > 0.1:
                action = int((features(observation) @ weights).argmax())
            observation, _, terminated, truncated, _ = recorded.step(action)
            if terminated or truncated:
                observation, _ = recorded.reset()


class Actors:
    """The processes; those that died are started again."""

    def __init__(self, folder, n_actors, samples_per_step):
        self.context = multiprocessing.get_context("spawn")
        # Without a lock, which an actor that is killed would keep: only the learner writes.
        self.samples = self.context.Value("q", 0, lock=False)
        self.given = folder, n_actors, samples_per_step
        self.processes = [self.start(number) for number in range(n_actors)]
        self.n_restarts = 0

    def start(self, number):
        folder, n_actors, ratio = self.given
        arguments = (folder, number, n_actors, self.samples, ratio)
        process = self.context.Process(target=act, args=arguments, daemon=True)
        process.start()
        return process

    def look(self):
        for number, process in enumerate(self.processes):
            if not process.is_alive():
                self.processes[number] = self.start(number)
                self.n_restarts += 1

    def end(self):
        self.samples.value = -1
        for process in self.processes:
            process.join()


def train(folder, n_actors, n_batches, samples_per_step):
    """Sample from all lanes while they grow; returns what the last line says."""
    path, weights = folder / "run.zarr", np.zeros((9, N_ACTIONS))
    publish(folder / "weights.npy", weights)
    actors = Actors(folder, n_actors, samples_per_step)
    while not sorted(path.glob("lane-*/.live/state")):  # of the first actor
        time.sleep(0.05)
    with mmreplay.load(path, gamma=GAMMA, n_step=3) as data:
        for number in range(n_batches):
            while (samples := number * BATCH_SIZE) + BATCH_SIZE > (
                samples_per_step * len(data) + MARGIN if len(data) > BATCH_SIZE else 0
            ):
                actors.look()
                time.sleep(0.002)
            learn(weights, data.sample(BATCH_SIZE))
            actors.samples.value = samples + BATCH_SIZE
            if number % 50 == 0:
                actors.look()
                publish(folder / "weights.npy", weights)
                print(f"batch {number:,}: {len(data):,} steps", flush=True)
        actors.end()
        n_steps, lanes = len(data), len(data.store.lanes)
        returns = data.episodes["return"]
    return {
        "steps": n_steps,
        "lanes": lanes,
        "restarts": actors.n_restarts,
        "samples_per_step": n_batches * BATCH_SIZE / n_steps,
        "return": float(returns[-50:].mean()),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--actors", type=int, default=3)
    parser.add_argument("--batches", type=int, default=1_500)
    parser.add_argument("--samples-per-step", type=float, default=8)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    print(json.dumps(train(folder, given.actors, given.batches, given.samples_per_step)))
