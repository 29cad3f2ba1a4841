"""Online: double DQN on MinAtar Breakout, with a prioritized replay buffer on disk.

    python examples/online_minatar.py FOLDER [--steps 80000] [--seed 0] [--kill 40000]

Trains in FOLDER, and goes on there if it was killed: the buffer finds its rows and priorities again
by itself, and the networks come from the last checkpoint. With `--kill N` it shows that: it trains
in another process, kills that with SIGKILL when N transitions are stored, and goes on. The last
line that it prints is the result as JSON.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import gymnasium
import minatar.gym
import numpy as np
import torch
from torch import nn

import mmreplay
from mmreplay.adapters.torch import to_tensors

LEARNING_STARTS, LEARN_EVERY, BATCH_SIZE, TARGET_EVERY, N_CHECKPOINTS = 1_000, 2, 64, 1_000, 16
minatar.gym.register_envs()


class QNetwork(nn.Module):
    """Values of the actions, (B, 3), of observations (B, 10, 10, 4)."""

    def __init__(self):
        super().__init__()
        self.convolution, self.hidden = nn.Conv2d(4, 16, 3), nn.Linear(1024, 128)
        self.head = nn.Linear(128, 3)

    def forward(self, observation):
        seen = self.convolution(observation.permute(0, 3, 1, 2).float()).relu().flatten(1)
        return self.head(self.hidden(seen).relu())

    @torch.no_grad()
    def best(self, observation):
        return int(self(torch.from_numpy(observation)[None]).argmax())


def play(act, episodes, seed):
    env, total = gymnasium.make("MinAtar/Breakout-v1"), 0.0
    for episode in range(episodes):
        (observation, _), over = env.reset(seed=seed if episode == 0 else None), False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def learn(buffer, network, target, optimizer):
    batch = buffer.sample(BATCH_SIZE)
    tensors = to_tensors(batch)
    with torch.no_grad():  # double DQN: one network chooses the action, the other values it
        best = network(tensors.next_observation).argmax(1, keepdim=True)
        later = target(tensors.next_observation).gather(1, best)[:, 0]
        wanted = tensors.reward + tensors.discount * later  # both over n steps
    values = network(tensors.observation).gather(1, tensors.action[:, None])[:, 0]
    losses = nn.functional.huber_loss(values, wanted, reduction="none")
    optimizer.zero_grad()
    (tensors.weight * losses).mean().backward()
    optimizer.step()
    buffer.update_priorities(batch.id, (values - wanted).detach().numpy())


def train(folder, steps, seed):
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, store = folder / "checkpoint.pt", folder / "store.zarr"
    env = gymnasium.make("MinAtar/Breakout-v1")
    buffer = mmreplay.PrioritizedReplayBuffer(
        store, stack=None, n_step=3, gamma=0.99, seed=seed, env=env, betasteps=steps
    )
    network, target = QNetwork(), QNetwork()
    target.load_state_dict(network.state_dict())
    optimizer = torch.optim.Adam(network.parameters(), 5e-4, fused=True)
    parts = {"network": network, "target": target, "optimizer": optimizer, "buffer": buffer}
    step, seconds, curve, returns, total = 0, 0.0, [], [], 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        step, seconds, curve = saved["step"], saved["seconds"], saved["curve"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    env, random = mmreplay.RecordExperience(env, buffer), np.random.default_rng((seed, step))
    began = time.process_time() - seconds
    observation, _ = env.reset(seed=1_000 * seed + step)
    while step < steps:
        epsilon = max(0.1, 1 - step / (0.2 * steps))
        action = int(random.integers(3)) if random.random() < epsilon else network.best(observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        step, total = step + 1, total + float(reward)
        if terminated or truncated:
            returns, total = [*returns, total], 0.0
            observation, _ = env.reset()
        if len(buffer) >= LEARNING_STARTS and step % LEARN_EVERY == 0:
            learn(buffer, network, target, optimizer)
        if step % TARGET_EVERY == 0:
            target.load_state_dict(network.state_dict())
        if step % (steps // N_CHECKPOINTS) == 0:
            curve, returns = [*curve, [step, round(float(np.mean(returns)), 2)]], []
            print(f"step {step}: {curve[-1][1]} points an episode", file=sys.stderr, flush=True)
            buffer.flush()  # the rows first, so that a checkpoint always has its store
            state = {name: part.state_dict() for name, part in parts.items()}
            state |= {"step": step, "curve": curve, "seconds": time.process_time() - began}
            torch.save(state, folder / "checkpoint.new")
            (folder / "checkpoint.new").replace(checkpoint)
    result = {"seed": seed, "stored": len(buffer), "curve": curve}
    buffer.close()
    result["return"] = round(play(network.best, 200, seed=10_000 + seed), 2)
    return result | {"seconds": round(time.process_time() - began, 1)}


def kill(folder, rows, command):
    """Train in another process, which is killed once the store has so many transitions."""
    training, found = subprocess.Popen(command), 0  # noqa: S603  our own
    while found < rows:
        assert training.poll() is None, "the training ended by itself"
        time.sleep(0.1)
        if (folder / "store.zarr").exists():
            found = len(mmreplay.open(folder / "store.zarr"))  # read while it is written
    training.kill()
    training.wait()
    return len(mmreplay.open(folder / "store.zarr"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=80_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kill", type=int, help="how many transitions are stored at the kill")
    args, killed = parser.parse_args(), {}
    if args.kill:
        command = [sys.executable, __file__, args.folder]
        command += ["--steps", str(args.steps), "--seed", str(args.seed)]
        killed = {"killed_at": kill(args.folder, args.kill, command)}
    print(json.dumps(train(args.folder, args.steps, args.seed) | killed))


if __name__ == "__main__":
    main()
