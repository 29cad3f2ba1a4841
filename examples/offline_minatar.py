"""Offline: conservative Q-learning and behaviour cloning, from what another training recorded.

    python examples/online_minatar.py FOLDER
    python examples/offline_minatar.py FOLDER/store.zarr [--seed 0] [--updates 8000]

Nothing is played but to see how good the policies are. CQL learns from every transition of the
store; the clone from the best tenth of its episodes, of which it takes a `select`ion. The last line
that it prints is the result as JSON.
"""

import argparse
import copy
import json
import time

import gymnasium
import minatar.gym
import numpy as np
import torch
from torch import nn

import mmreplay
from mmreplay.adapters.torch import loader, to_tensors

BATCH_SIZE, CONSERVATISM, TARGET_EVERY = 128, 0.5, 500
minatar.gym.register_envs()


class Network(nn.Module):
    """A number for each action, (B, 3), of observations (B, 10, 10, 4)."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(),
            nn.Linear(128, 3),
        )  # fmt: skip

    def forward(self, observation):
        return self.layers(observation.permute(0, 3, 1, 2).float())


def cql(data, updates):
    """Double DQN, with a price on actions that are valued more than those of the data."""
    network = Network()
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), 3e-4, fused=True)
    for update in range(updates):
        batch = to_tensors(data.sample(BATCH_SIZE))
        with torch.no_grad():
            best = network(batch.next_observation).argmax(1, keepdim=True)
            later = target(batch.next_observation).gather(1, best)[:, 0]
            wanted = batch.reward + batch.discount * later  # both over n steps
        values = network(batch.observation)
        chosen = values.gather(1, batch.action[:, None])[:, 0]
        conservative = (values.logsumexp(1) - chosen).mean()
        loss = nn.functional.smooth_l1_loss(chosen, wanted) + CONSERVATISM * conservative
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if update % TARGET_EVERY == 0:
            target.load_state_dict(network.state_dict())
    return network


def clone(data, updates):
    """The actions of the data, by its observations, in epochs."""
    network = Network()
    optimizer = torch.optim.Adam(network.parameters(), 3e-4, weight_decay=1e-4, fused=True)
    epochs = -(-updates * BATCH_SIZE // len(data))
    for batch in loader(data, BATCH_SIZE, epochs=epochs, prefetch=0):
        loss = nn.functional.cross_entropy(network(batch.observation), batch.action)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


@torch.no_grad()
def play(network, seed, episodes=30):
    """The mean return of the actions with the largest numbers; without a network, of any."""
    env = gymnasium.make("MinAtar/Breakout-v1")
    random, total = np.random.default_rng(seed), 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=20_000 + seed if episode == 0 else None)
        over = False
        while not over:
            action = int(random.integers(3))
            if network is not None:
                action = int(network(torch.from_numpy(observation)[None]).argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=8_000, help="of each of the two")
    args, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    data = mmreplay.load(args.store, stack=None, n_step=3, gamma=0.99, seed=args.seed)
    recorded = data.episodes["return"]
    best = data.select(episodes=np.argsort(-recorded, kind="stable")[: len(recorded) // 10])
    returns = {
        "random": play(None, args.seed),
        "recorded": recorded.mean(),
        "recorded_last": recorded[-len(recorded) // 10 :].mean(),
        "recorded_best": best.episodes["return"].mean(),
        "cql": play(cql(data, args.updates), args.seed),
        "clone": play(clone(best, args.updates), args.seed),
    }
    result = {"seed": args.seed} | {name: round(float(mean), 2) for name, mean in returns.items()}
    print(json.dumps(result | {"seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
