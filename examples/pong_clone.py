"""Pixels: Atari Pong, recorded with a scripted policy and cloned from its frames.

    python examples/pong_clone.py [--seed 0] [--steps 40000]

`mmreplay record` plays with `Scripted`, which finds ball and paddle in the frames. The clone sees
stacks of four frames from the store: the centres of what stands out of the background, and their
differences, go into a small network. The last line that it prints is the result as JSON.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ale_py
import gymnasium
import numpy as np
import torch
from torch import nn

import mmreplay

BACKGROUND, TOP, BOTTOM, PADDLE = 87, 14, 76, 72  # a brightness, two rows, a column
HEIGHT, BATCH_SIZE, EPOCHS = BOTTOM - TOP, 256, 20
ACTIONS = np.array([0, 3, 2])  # of the game: stay, down and, as number -1, up
PLANS = np.array([0, -1, 1])[np.indices((3, 3, 3, 3)).reshape(4, -1).T]  # four moves each


def centres(frames):
    """Row, column and presence of the ball and of the paddle, (B, 2, 3), in frames (B, 84, 84)."""
    field = torch.as_tensor(frames)[:, TOP : BOTTOM + 1].float()
    parts = []
    for left, right, brightest in ((12, 72, 255), (73, 76, 180)):  # a ball may hide the paddle
        part = field[:, :, left:right]
        light = (part - BACKGROUND).abs() * (part <= brightest) * ((part - BACKGROUND).abs() >= 8)
        total = light.sum((1, 2)).clamp(min=1)
        row = light.sum(2) @ torch.arange(TOP, BOTTOM + 1.0) / total
        column = light.sum(1) @ torch.arange(left, float(right)) / total
        parts.append(torch.stack([row, column, (total > 20).float()], 1))
    return torch.stack(parts, 1)


class Scripted:
    """Moves the paddle to where the ball will come, by the best of all plans of four steps."""

    def __init__(self, *_):  # spaces and a seed
        self.before, self.last = np.zeros((2, 3)), 0

    def __call__(self, frame):
        (row_before, column_before, _), (paddle_before, _, was_there) = self.before
        was_seen, self.before = self.before[0, 2], centres(frame[None])[0].numpy()
        (row, column, seen), (paddle, _, there) = self.before
        steps, target = 4.0, 0.7 * 45 + 0.3 * (row if seen else 45)
        if seen and was_seen and column - column_before > 0.3:
            steps = (PADDLE - column) / (column - column_before)
            away = (row + (row - row_before) * steps - TOP) % (2 * HEIGHT)
            target = min(away, 2 * HEIGHT - away) + TOP  # walls reflect the ball
        speed = paddle - paddle_before if was_there else 0
        self.last = self.best(paddle, speed, target, steps) if there else 0
        return int(ACTIONS[self.last])

    def best(self, paddle, speed, target, steps):
        """The first move of the best plan. The paddle has inertia, as measured in recordings."""
        last, cost = np.full(len(PLANS), self.last), 0.3 * np.abs(PLANS).sum(1)
        for step in range(7):
            move = PLANS[:, step] if step < 4 else np.zeros(len(PLANS))
            speed = 2.2 * move + 4.0 * last + 0.35 * speed
            paddle, last = np.clip(paddle + speed, TOP, BOTTOM), move
            if step + 1 >= min(steps, 5):
                cost = cost + np.abs(paddle - target)
        return int(PLANS[cost.argmin(), 0])


def positions(stacks):
    """What the network gets, (B, 42), of stacks (B, 4, 84, 84)."""
    found = centres(np.concatenate(stacks)).unflatten(0, stacks.shape[:2]).flatten(2)
    found = (found - torch.tensor([45.0, 42, 0] * 2)) / torch.tensor([10.0, 10, 1] * 2)
    moved = 3 * (found[:, 1:] - found[:, :-1])
    return torch.cat([found.flatten(1), moved.flatten(1)], 1)


def clone(data):
    """A network that gives the actions of the data, (B, 3), from what `positions` gives."""
    number = torch.tensor([0, 0, 2, 1])  # of an action, in ACTIONS
    inputs, wanted = [], []
    for batch in data.batches(512, shuffle=False):
        inputs.append(positions(batch.observation))
        wanted.append(number[torch.as_tensor(batch.action)])
    inputs, wanted = torch.cat(inputs), torch.cat(wanted)
    balance = 1 / torch.bincount(wanted, minlength=3).clamp(min=1).sqrt()
    layers = (nn.Linear(42, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 3))
    network = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(network.parameters(), 2e-3, fused=True)
    updates = EPOCHS * -(-len(wanted) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, updates)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(wanted)).split(BATCH_SIZE):
            loss = nn.functional.cross_entropy(network(inputs[chosen]), wanted[chosen], balance)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network


@torch.no_grad()
def play(act, seed, most, episodes=3):
    """Points an episode, with `act` for the actions of stacks of frames."""
    gymnasium.register_envs(ale_py)
    game = gymnasium.make("ALE/Pong-v5", frameskip=1, max_num_frames_per_episode=0)
    game = mmreplay.FrameStack(gymnasium.wrappers.AtariPreprocessing(game), 4)
    total = 0.0
    for episode in range(episodes):
        (stack, _), over, step = game.reset(seed=1_000 * (seed + 1) + episode), False, 0
        while not over and step < most:
            stack, reward, over, _, _ = game.step(int(act(np.asarray(stack))))
            step, total = step + 1, total + float(reward)
    return round(total / episodes, 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40_000)
    parser.add_argument("--most", type=int, default=27_000, help="steps of an episode at the end")
    args, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "mmreplay_cli", "record", "ALE/Pong-v5"]
        options = f"--policy pong_clone:Scripted --envs 4 --seed {args.seed} --steps {args.steps}"
        command += [f"{folder}/pong.zarr", *options.split()]  # in this folder it finds this file
        subprocess.run(command, check=True, cwd=Path(__file__).parent, stdout=sys.stderr)  # noqa: S603  our own
        network = clone(mmreplay.load(f"{folder}/pong.zarr", stack=4))
    random, scripted, played = np.random.default_rng(args.seed), Scripted(), (args.seed, args.most)
    result = {"seed": args.seed} | {
        "random": play(lambda _: random.integers(6), *played),
        "scripted": play(lambda stack: scripted(stack[-1]), *played),
        "return": play(lambda stack: ACTIONS[network(positions(stack[None])).argmax()], *played),
    }
    print(json.dumps(result | {"seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
