"""Chunks of actions, as in ACT: label a recording, select, normalise, train on windows, play.

    python examples/action_chunks.py [--seed 0] [--episodes 60] [--updates 1500]

A car in a valley (MountainCarContinuous) that shows its position alone, recorded with a driver who
knows the velocity and with one who drives at random. Episodes that reach the flag are tagged, and
only they are cloned. From two positions the policy predicts the next 8 actions; while it plays, all
predictions of a moment are averaged. Beside it a policy that is given one position, and one action
to predict. The last line that it prints is the result as JSON.

Source: Zhao et al., "Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", 2023,
https://arxiv.org/abs/2304.13705 (chunks of actions, the L1 loss, the weights of the average).
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
from mmreplay.transforms import Normalize

CHUNK, BACK, BATCH_SIZE = 8, -4, 128


class HideVelocity(gymnasium.ObservationWrapper):
    """Of position and velocity the first."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-1.2, 0.6, (1,), np.float32)

    def observation(self, observation):
        return observation[:1]


def make_env():
    return HideVelocity(gymnasium.make("MountainCarContinuous-v0", max_episode_steps=200))


def record(path, episodes, seed):
    """Every other episode of the driver who knows the velocity, with noise; the rest at random."""
    random = np.random.default_rng(seed)
    env = mmreplay.RecordExperience(make_env(), path)
    for episode in range(episodes):
        env.reset(seed=1_000 * seed + episode)
        over = False
        while not over:
            noise = random.normal(0, 0.2)
            action = 0.8 * np.sign(env.unwrapped.state[1]) + noise if episode % 2 else 5 * noise
            _, _, terminated, truncated, _ = env.step(np.clip([action], -1, 1).astype(np.float32))
            over = terminated or truncated
    env.close()
    mmreplay.tag(path, episodes=lambda table: table["terminated"], success=1)


def clone(data, normalize, positions, chunk, updates):
    """A network from positions at these offsets, (B, len(positions)), to actions, (B, chunk)."""
    hidden = (nn.Linear(len(positions), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    network = nn.Sequential(*hidden, nn.Linear(128, chunk))
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    normalized = mmreplay.Decorated(data, normalize)
    windows = {"observation": positions, "action": range(chunk)}
    for _ in range(updates):
        batch = to_tensors(normalized.sample_windows(BATCH_SIZE, windows))
        predicted, mask = network(batch["observation"].squeeze(-1)), batch.mask["action"]
        loss = ((predicted - batch["action"].squeeze(-1)).abs() * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


@torch.no_grad()
def play(policy, normalize, positions, chunk, seed, episodes=20):
    """The mean return, and the share of episodes that reach the flag."""
    env, total, reached = make_env(), 0.0, 0
    for episode in range(episodes):
        observation, _ = env.reset(seed=100_000 * (seed + 1) + episode)
        seen, plans, over = [observation], [], False
        while not over:
            window = np.array([seen[max(0, len(seen) - 1 + offset)] for offset in positions])
            inputs = torch.from_numpy(normalize.apply("observation", window)).float().T
            plans = [policy(inputs)[0].numpy(), *plans[: chunk - 1]]
            weights = np.exp(-0.01 * np.arange(len(plans)))[::-1]  # the oldest plan counts most
            action = np.average([plan[age] for age, plan in enumerate(plans)], weights=weights)
            action = np.clip(normalize.inverse("action", np.array([action])), -1, 1)
            observation, reward, terminated, truncated, _ = env.step(action.astype(np.float32))
            seen.append(observation)
            total, over = total + float(reward), terminated or truncated
        reached += terminated
    return total / episodes, reached / episodes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--updates", type=int, default=1_500)
    args, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    result = {"seed": args.seed}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.zarr"
        record(path, args.episodes, args.seed)
        everything = mmreplay.load(path, stack=None, seed=args.seed)
        data = everything.select(episodes=lambda table: table["success"] == 1)
        normalize = Normalize.fit(data)
        result |= {"recorded": float(data.episodes["return"].mean())}
        result |= {"selected": len(data.episodes), "episodes": len(everything.episodes)}
        for name, positions, chunk in (("single_", (0,), 1), ("", (BACK, 0), CHUNK)):
            policy = clone(data, normalize, positions, chunk, args.updates)
            mean, share = play(policy, normalize, positions, chunk, args.seed)
            result |= {f"{name}return": mean, f"{name}reached": share}
    result = {name: round(value, 2) for name, value in result.items()}
    print(json.dumps(result | {"seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
