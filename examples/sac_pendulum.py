"""Vector environments: soft actor-critic on four Pendulums, whose steps go to one buffer on disk.

    python examples/sac_pendulum.py [--seed 0] [--steps 12000]

`RecordExperience` writes what happens in a vector environment in Gymnasium's default autoreset
mode, NEXT_STEP: true final observations, and no steps of a reset. The last line that it prints is
the result as JSON.
"""

import argparse
import copy
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

N_ENVS, BATCH_SIZE, TAU, LEARNING_STARTS = 4, 128, 0.005, 1_000
HIGHEST = 2.0  # action


def layers(n_in, n_out):
    hidden = (nn.Linear(n_in, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(128, n_out))


class Actor(nn.Module):
    """A normal distribution, squashed into the range of actions."""

    def __init__(self):
        super().__init__()
        self.layers = layers(3, 2)

    def forward(self, observation):
        """An action, (B, 1), its log probability, (B,), and the most likely action."""
        mean, log_std = self.layers(observation).chunk(2, dim=1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        raw = normal.rsample()
        # The density of tanh(raw): log(1 - tanh(raw)^2), written so that it does not round to 0.
        squashed = 2 * (np.log(2) - raw - nn.functional.softplus(-2 * raw))
        log_probability = (normal.log_prob(raw) - squashed - np.log(HIGHEST)).sum(1)
        return HIGHEST * raw.tanh(), log_probability, HIGHEST * mean.tanh()


class Critics(nn.Module):
    """Two values, (2, B), of observations and actions."""

    def __init__(self):
        super().__init__()
        self.one, self.two = layers(4, 1), layers(4, 1)

    def forward(self, observation, action):
        both = torch.cat([observation, action], 1)
        return torch.cat([self.one(both), self.two(both)], 1).T


def minimize(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Agent:
    """Networks and optimizers."""

    def __init__(self):
        self.actor, self.critics = Actor(), Critics()
        self.targets = copy.deepcopy(self.critics)
        self.log_alpha = torch.zeros((), requires_grad=True)  # weight of the entropy
        parts = (self.actor.parameters(), self.critics.parameters(), [self.log_alpha])
        self.optimizers = [torch.optim.Adam(part, 1e-3, fused=True) for part in parts]

    def learn(self, batch):
        of_actor, of_critics, of_alpha = self.optimizers
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            action, log_probability, _ = self.actor(batch.next_observation)
            value = self.targets(batch.next_observation, action).amin(0) - alpha * log_probability
            # The discount is 0 only where an episode terminated: a Pendulum's never does, and
            # the value after a time limit is that of its true final observation.
            wanted = batch.reward + batch.discount * value
        values = self.critics(batch.observation, batch.action)
        minimize(((values - wanted) ** 2).mean(1).sum(), of_critics)
        action, log_probability, _ = self.actor(batch.observation)
        value = self.critics(batch.observation, action).amin(0)
        minimize((alpha * log_probability - value).mean(), of_actor)
        minimize(-self.log_alpha.exp() * (log_probability.detach().mean() - 1), of_alpha)
        with torch.no_grad():
            pairs = zip(self.targets.parameters(), self.critics.parameters(), strict=True)
            for slow, quick in pairs:
                slow.lerp_(quick, TAU)


@torch.no_grad()
def play(actor, seed, episodes=10):
    """The mean return of an actor's most likely actions."""
    env, total = gymnasium.make("Pendulum-v1"), 0.0
    for episode in range(episodes):
        (observation, _), over = env.reset(seed=1_000 * (seed + 1) + episode), False
        while not over:
            action = actor(torch.from_numpy(observation)[None])[2][0].numpy()
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def train(path, steps, seed):
    agent, envs = Agent(), gymnasium.make_vec("Pendulum-v1", num_envs=N_ENVS)
    envs.action_space.seed(seed)
    with mmreplay.ReplayBuffer(path, stack=None, gamma=0.97, env=envs, seed=seed) as buffer:
        recorded = mmreplay.RecordExperience(envs, buffer)
        observations, _ = recorded.reset(seed=seed)
        while len(buffer) < steps:
            actions = envs.action_space.sample()
            if len(buffer) >= LEARNING_STARTS:
                with torch.no_grad():
                    actions = agent.actor(torch.from_numpy(observations))[0].numpy()
            observations, *_ = recorded.step(actions)
            if len(buffer) >= LEARNING_STARTS:
                for _ in range(N_ENVS):
                    agent.learn(to_tensors(buffer.sample(BATCH_SIZE)))
    return agent


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=12_000, help="of all environments together")
    args, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    with tempfile.TemporaryDirectory() as folder:
        path, untrained = Path(folder) / "store.zarr", play(Agent().actor, args.seed)
        agent = train(path, args.steps, args.seed)
        n_episodes = len(mmreplay.open(path).episodes)
    result = {"seed": args.seed, "return": round(play(agent.actor, args.seed), 1)}
    result |= {"untrained": round(untrained, 1), "episodes": n_episodes}
    print(json.dumps(result | {"seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
