"""Sequences: a recurrent policy for a CartPole that hides its velocities, cloned from a store.

    python examples/recurrent_cartpole.py [--seed 0] [--steps 20000] [--updates 1500]

The expert sees everything; the store has what the clones see: two positions. From the same store
come windows for a GRU (`sample_sequences`, whose burn-in warms its state up) and single steps for a
network without memory, which cannot know where the pole is going. The last line that it prints is
the result as JSON.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn

import mmreplay
from mmreplay.adapters.torch import to_tensors

LENGTH, BURN_IN, BATCH_SIZE = 16, 8, 64


class HideVelocities(gymnasium.ObservationWrapper):
    """Of position, velocity, angle and angular velocity the first and the third, scaled."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation):
        return observation[[0, 2]] * np.array([1, 10], np.float32)


def make_env():
    return HideVelocities(gymnasium.make("CartPole-v1"))


def expert(env):
    position, velocity, angle, angular_velocity = env.unwrapped.state
    return int(angle + 0.3 * angular_velocity + 0.02 * position + 0.04 * velocity > 0)


def record(path, steps, seed):
    """Steps of the expert, who now and then does something else; returns the mean return."""
    random = np.random.default_rng(seed)
    env = mmreplay.RecordExperience(make_env(), path)
    env.reset(seed=seed)
    for _ in range(steps):
        action = int(random.integers(2)) if random.random() < 0.1 else expert(env)
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    env.close()
    return float(mmreplay.open(path).episodes["return"].mean())


class Recurrent(nn.Module):
    """Logits of the actions, (B, 2), from an observation (B, 2) and a state (B, 64)."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRUCell(2, 64), nn.Linear(64, 2)

    def forward(self, observation, state):
        state = self.cell(observation, state)
        return self.head(state), state


def clone_recurrent(data, updates):
    network = Recurrent()
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(updates):
        # "pad": a window that begins before its episode does has mask False there.
        batch = data.sample_sequences(BATCH_SIZE, LENGTH, BURN_IN, boundary="pad")
        observation, action, mask = map(
            torch.from_numpy, (batch.observation.copy(), batch.action, batch.mask)
        )
        state, loss = torch.zeros(BATCH_SIZE, 64), torch.zeros(())
        for t in range(BURN_IN + LENGTH):
            logits, state = network(observation[:, t], state)
            state = state * mask[:, t, None]  # the episode begins with a state of zeros
            if t >= BURN_IN:
                each = nn.functional.cross_entropy(logits, action[:, t], reduction="none")
                loss = loss + (each * mask[:, t]).sum()
        loss = loss / mask[:, BURN_IN:].sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


def clone_memoryless(data, updates):
    hidden = (nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())
    network = nn.Sequential(*hidden, nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(updates):
        batch = to_tensors(data.sample(BATCH_SIZE * LENGTH))
        loss = nn.functional.cross_entropy(network(batch.observation), batch.action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


@torch.no_grad()
def play(policy, seed, episodes=20):
    """The mean return of `policy(observation, state) -> logits, state`."""
    env, total = make_env(), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=1_000 * (seed + 1) + episode)
        state, over = torch.zeros(1, 64), False
        while not over:
            logits, state = policy(torch.from_numpy(observation)[None], state)
            observation, reward, terminated, truncated, _ = env.step(int(logits.argmax()))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--updates", type=int, default=1_500)
    args, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        recorded = record(Path(folder) / "store.zarr", args.steps, args.seed)
        data = mmreplay.load(Path(folder) / "store.zarr", stack=None, seed=args.seed)
        recurrent = clone_recurrent(data, args.updates)
        memoryless = clone_memoryless(data, args.updates)
    returns = {
        "recorded": recorded,
        "memoryless": play(lambda observation, state: (memoryless(observation), state), args.seed),
        "return": play(recurrent, args.seed),
    }
    result = {"seed": args.seed} | {name: round(mean, 1) for name, mean in returns.items()}
    print(json.dumps(result | {"seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
