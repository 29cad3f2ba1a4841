"""Ape-X: actors on Ray, a store beside a prioritized learner, on MinAtar Breakout.

    python examples/ape_x.py FOLDER [--updates 40000] [--actors 2] [--seed 0]
        [--kill-actors S] [--kill-learner N]

Needs Ray, PyTorch and MinAtar. Actors step eight environments each, with exploration as in Horgan
et al. (2018), and send their steps to a `mmreplay.distributed.Run`. The learner is a process of its
own, which needs no Ray: double DQN as in online_minatar.py, with 32 samples per step. It leaves its
weights as a file; this process hands them to the actors. With `--kill-actors S` an actor is killed
every S seconds or so, and Ray starts it again; with `--kill-learner N` so is the learner, each time
after N updates more: it goes on from its checkpoint. The last line is the result as JSON.

Call it with the same folder again to go on after this process was killed.
"""

import argparse
import contextlib
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

ENVS, SAMPLES_PER_STEP, MIN_SIZE, WEIGHTS_EVERY, LOOK_EVERY = 8, 32, 1_000, 50, 32
CURVE_EPISODES, SAVE_EVERY = 20, 500


def make_env():
    return gymnasium.make_vec("MinAtar/Breakout-v1", ENVS)


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Board:
    """The newest weights, as bytes, and the returns of episodes with the least exploration."""

    def __init__(self):
        self.number, self.weights, self.returns = 0, None, []

    def put(self, weights):
        self.number, self.weights = self.number + 1, weights

    def newer(self, number):
        return (self.number, self.weights) if self.number > number else None

    def add(self, returns):
        self.returns += returns

    def take(self):
        taken, self.returns = self.returns, []
        return taken


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Actor:
    """Plays until it is killed."""

    def play(self, run, board, i, actors, seed):
        torch.set_num_threads(1)
        with run.writer(i) as writer:  # again after a kill: then it goes on in its lane
            env, network = mmreplay.RecordExperience(make_env(), writer), QNetwork()
            random, number = np.random.default_rng((seed, i, writer.rows)), 0
            share = (i * ENVS + np.arange(ENVS)) / (actors * ENVS - 1)
            epsilon, has_weights = 0.4 ** (1 + 7 * share), False
            observation, _ = env.reset(seed=int(random.integers(1 << 31)))
            totals = np.zeros(ENVS)
            for step in range(1 << 62):
                if step % LOOK_EVERY == 0:
                    with contextlib.suppress(ray.exceptions.RayActorError):  # coming back
                        if newer := ray.get(board.newer.remote(number)):
                            number, has_weights = newer[0], True
                            network.load_state_dict(torch.load(io.BytesIO(newer[1])))
                action = random.integers(3, size=ENVS)
                if has_weights:
                    with torch.no_grad():
                        best = network(torch.from_numpy(observation)).argmax(1).numpy()
                    action = np.where(random.random(ENVS) < epsilon, action, best)
                observation, reward, terminated, truncated, _ = env.step(action)
                totals += reward
                over = terminated | truncated
                if i == actors - 1 and over[-1]:
                    board.add.remote([float(totals[-1])])
                totals[over] = 0


def train(folder, updates, seed):
    """The learner: goes on from its checkpoint, by the steps that are in the store by now."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data = buffer(
        folder / "store.zarr", stack=None, n_step=3, gamma=0.99, seed=seed,
        prioritized={"betasteps": updates},
    )  # fmt: skip
    network, target, done = QNetwork(), QNetwork(), 0
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), 5e-4)
    parts = {"network": network, "target": target, "optimizer": optimizer, "buffer": data}
    if (folder / "checkpoint.pt").exists():
        saved = torch.load(folder / "checkpoint.pt")
        done = saved["done"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    while done < updates:
        learn(data, network, target, optimizer)  # waits for the actors where they are behind
        done += 1
        if done % (TARGET_EVERY // 2) == 0:
            target.load_state_dict(network.state_dict())
        if done % WEIGHTS_EVERY == 0 or done == updates:
            save(network.state_dict(), folder / "weights.pt")
            (folder / "progress").write_text(str(done))
        if done % SAVE_EVERY == 0 or done == updates:
            data.flush()  # the priorities first
            state = {name: part.state_dict() for name, part in parts.items()} | {"done": done}
            save(state, folder / "checkpoint.pt")
    data.close()


def save(what, path):
    torch.save(what, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


def run_all(folder, args):
    """Actors, receiver and learner, until the learner has made its updates."""
    actors, random = args.actors, np.random.default_rng(args.seed)
    command = [sys.executable, __file__, folder, "--learn", "--updates", args.updates]
    command = [*map(str, command), "--seed", str(args.seed)]
    n_killed, curve, returns, sent = {"actors": 0, "learner": 0}, [], [], None
    weights, began = folder / "weights.pt", time.monotonic()
    with Run(
        folder / "store.zarr", env=make_env(), actors=actors,
        samples_per_insert=SAMPLES_PER_STEP, min_size=MIN_SIZE,
    ) as run:  # fmt: skip
        board, players = Board.remote(), [Actor.remote() for _ in range(actors)]
        for i, one in enumerate(players):
            one.play.remote(run, board, i, actors, args.seed)
        learner = subprocess.Popen(command)  # noqa: S603  our own
        next_kill, next_end = began + args.kill_actors, progress_of(folder) + args.kill_learner
        while learner.poll() is None:
            time.sleep(0.1)
            if weights.exists() and (stamp := weights.stat().st_mtime_ns) != sent:
                sent = stamp
                with contextlib.suppress(ray.exceptions.RayActorError):
                    ray.get(board.put.remote(weights.read_bytes()))
                    returns += ray.get(board.take.remote())
                if len(returns) >= CURVE_EPISODES:
                    curve.append([len(mmreplay.open(run.path)), round(float(np.mean(returns)), 2)])
                    returns = []
            if args.kill_actors and time.monotonic() > next_kill:
                ray.kill(players[random.integers(actors)], no_restart=False)
                n_killed["actors"] += 1
                next_kill = time.monotonic() + args.kill_actors * (0.5 + random.random())
            if args.kill_learner and (progress := progress_of(folder)) >= next_end:
                learner.kill()
                learner.wait()
                n_killed["learner"] += 1
                next_end = progress + args.kill_learner
                learner = subprocess.Popen(command)  # noqa: S603
        assert learner.returncode == 0, "the learner ended by itself"
        for one in players:
            ray.kill(one)
    network = QNetwork()
    network.load_state_dict(torch.load(weights))
    result = {"seed": args.seed, "stored": len(mmreplay.open(run.path)), "curve": curve}
    result |= {"killed": n_killed, "seconds": round(time.monotonic() - began, 1)}
    return result | {"return": round(play(network.best, args.episodes, 10_000 + args.seed), 2)}


def progress_of(folder):
    """Updates that were made, or 0 if that is just being written."""
    path = folder / "progress"
    return int((path.read_text() if path.exists() else "") or 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=40_000)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=200, help="of the result, without noise")
    parser.add_argument("--kill-actors", type=float, default=0, help="seconds between kills")
    parser.add_argument("--kill-learner", type=int, default=0, help="updates between kills")
    parser.add_argument("--learn", action="store_true", help="be the learner")
    args = parser.parse_args()
    if 0 < args.kill_learner < SAVE_EVERY:
        parser.error(f"--kill-learner: expected {SAVE_EVERY} or more, the updates of a checkpoint")
    if args.learn:
        train(args.folder, args.updates, args.seed)
        return
    args.folder.mkdir(parents=True, exist_ok=True)
    ray.init(include_dashboard=False)
    print(json.dumps(run_all(args.folder, args)))


if __name__ == "__main__":
    main()
