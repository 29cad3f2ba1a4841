"""Ape-X: actors on Ray, a store beside a prioritized learner, on MinAtar Breakout.

    python examples/ape_x.py FOLDER [--updates 40000] [--kill-actors S] [--kill-learner N]

Actors step eight environments each, with exploration as in Horgan et al. (2018), and send their
steps to a `mmreplay.distributed.Run`. The learner is a process of its own without Ray: double DQN
as in online_minatar.py, 32 samples per step. It leaves its weights as a file, which this process
hands to the actors. An actor is killed every S seconds or so, and Ray starts it again; the learner
every N (500 or more) updates, and goes on from its checkpoint. The last line is the result as JSON.
"""

import argparse
import io
import json
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import numpy as np
import ray
import torch
from online_minatar import TARGET_EVERY, QNetwork, learn, play

import mmreplay
from mmreplay.distributed import Run, buffer

GAME, ENVS, SAMPLES_PER_STEP, MIN_SIZE = "MinAtar/Breakout-v1", 8, 32, 1_000
LOOK_EVERY, WEIGHTS_EVERY, SAVE_EVERY = 32, 50, 500


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=2)
class Actor:
    """Plays until it is killed, by random actions until it has weights."""

    newest = None

    def take(self, weights):
        self.newest = weights

    def play(self, run, i, actors, seed):
        torch.set_num_threads(1)
        writer = run.writer(i)  # again after a kill: then it goes on in its lane
        env, network = mmreplay.RecordExperience(gymnasium.make_vec(GAME, ENVS), writer), None
        random = np.random.default_rng((seed, i, writer.rows))
        epsilon = 0.4 ** (1 + 7 * (i * ENVS + np.arange(ENVS)) / (actors * ENVS - 1))
        observation, _ = env.reset(seed=int(random.integers(1 << 31)))
        for step in range(1 << 62):
            if step % LOOK_EVERY == 0 and self.newest is not None:
                given, self.newest, network = io.BytesIO(self.newest), None, network or QNetwork()
                network.load_state_dict(torch.load(given), strict=False)
            action = random.integers(3, size=ENVS)
            if network is not None:
                with torch.no_grad():
                    best = network(torch.from_numpy(observation)).argmax(1).numpy()
                action = np.where(random.random(ENVS) < epsilon, action, best)
            observation, *_ = env.step(action)


def train(folder, updates, seed):
    """The learner: goes on from its checkpoint, with the steps that are in the store by now."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    by_priority = {"stack": None, "n_step": 3, "prioritized": {"betasteps": updates}}
    data = buffer(folder / "store.zarr", seed=seed, **by_priority)
    network, target, before = QNetwork(), QNetwork(), 0
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), 5e-4)
    parts = {"network": network, "target": target, "optimizer": optimizer, "buffer": data}
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        before = saved["done"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for done in range(before + 1, updates + 1):
        learn(data, network, target, optimizer)  # waits for the actors where they are behind
        if done % (TARGET_EVERY // 2) == 0:
            target.load_state_dict(network.state_dict())
        if done % WEIGHTS_EVERY == 0 or done == updates:
            save(network.state_dict() | {"done": torch.tensor(done)}, folder / "weights.pt")
        if done % SAVE_EVERY == 0 or done == updates:
            data.flush()  # the priorities first
            state = {name: part.state_dict() for name, part in parts.items()} | {"done": done}
            save(state, checkpoint)
    data.close()


def save(what, path):
    torch.save(what, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def run_all(args):
    """Actors, receiver and learner, until the learner has made its updates; returns the kills."""
    n, random, killed = args.actors, np.random.default_rng(args.seed), {"actors": 0, "learner": 0}
    command, weights = [sys.executable, *sys.argv, "--learn"], args.folder / "weights.pt"
    sent, done, kill_at, kill_time = 0, 0, args.kill_learner, time.monotonic() + args.kill_actors
    given = {"samples_per_insert": SAMPLES_PER_STEP, "min_size": MIN_SIZE, "actors": n}
    with Run(args.folder / "store.zarr", env=gymnasium.make_vec(GAME, ENVS), **given) as run:
        actors = [Actor.remote() for _ in range(n)]
        for i, one in enumerate(actors):
            one.play.remote(run, i, n, args.seed)
        learner = subprocess.Popen(command)  # noqa: S603  our own
        while learner.poll() is None:
            time.sleep(0.1)
            if weights.exists() and (stamp := weights.stat().st_mtime_ns) != sent:
                sent, done = stamp, int(torch.load(weights)["done"])
                _ = [one.take.remote(weights.read_bytes()) for one in actors]
            if args.kill_actors and time.monotonic() > kill_time:
                ray.kill(actors[random.integers(n)], no_restart=False)
                killed["actors"] += 1
                kill_time = time.monotonic() + args.kill_actors * (0.5 + random.random())
            if args.kill_learner and args.updates > done >= kill_at:
                learner.kill()
                learner.wait()
                killed["learner"], kill_at = killed["learner"] + 1, done + args.kill_learner
                learner = subprocess.Popen(command)  # noqa: S603
        assert learner.returncode == 0, "the learner ended by itself"
        for one in actors:
            ray.kill(one)
    return killed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    usual = {"updates": 40_000, "actors": 2, "seed": 0, "episodes": 200}
    for name, value in {**usual, "kill-actors": 0, "kill-learner": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--learn", action="store_true", help="be the learner")
    args = parser.parse_args()
    if args.learn:
        train(args.folder, args.updates, args.seed)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    ray.init(include_dashboard=False)
    result, network = {"seed": args.seed, "killed": run_all(args)}, QNetwork()
    with mmreplay.load(args.folder / "store.zarr") as data:
        episodes, result["stored"] = data.episodes, len(data)
    least = episodes["return"][episodes["env"] == args.actors * ENVS - 1]  # of exploration
    result["curve"] = least[: least.size // 20 * 20].reshape(-1, 20).mean(1).round(2).tolist()
    network.load_state_dict(torch.load(args.folder / "weights.pt"), strict=False)
    print(json.dumps(result | {"return": play(network.best, args.episodes, 10_000 + args.seed)}))


if __name__ == "__main__":
    main()
