"""Chunks across episodes with latents written back, as DreamerV3 replays them.

    python examples/dreamer_chunks.py [--seed 0] [--steps 8000]

An episode of 48 steps begins with a cue that is never seen again, and the reward of each step is
the cue times what is seen. A recurrent model predicts rewards from chunks of 8 steps, which may
begin anywhere and run over ends of episodes. Its state after each step is stored in the buffer as a
derived column when the step is taken, and again whenever a chunk with it was trained on; a chunk
begins with the state that is stored. Without it, with zeros, the middle of an episode cannot be
predicted. The last line that it prints is the result as JSON: the error in the last chunks.

Source: Hafner et al., "Mastering Diverse Domains through World Models", 2023,
https://arxiv.org/abs/2301.04104 (version 2, appendix: chunks and latents in the replay buffer).
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import mmreplay

EPISODE, CHUNK, BATCH_SIZE, WIDTH = 48, 8, 16, 32


class Recall:
    """An episode: the cue, then signs at random, (2,): what it is, and whether it is the cue."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)

    def reset(self):
        self.t, self.cue = 0, self.random.choice([-1.0, 1.0])
        self.seen = np.array([self.cue, 1], np.float32)
        return self.seen

    def step(self):
        reward = float(self.cue * self.seen[0])
        self.seen = np.array([self.random.choice([-1.0, 1.0]), 0], np.float32)
        self.t += 1
        return self.seen, reward, self.t == EPISODE


class Model(nn.Module):
    """The state after an observation, (B, 32), and the reward that is predicted from it, (B,)."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, WIDTH)
        self.head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ELU(), nn.Linear(WIDTH, 1))

    def forward(self, observation, state):
        state = self.cell(observation, state)
        return self.head(state).squeeze(-1), state


def train(model, optimizer, buffer, with_latents):
    """One chunk of 8 steps, after one step that only lends its state; the squared error."""
    batch = buffer.sample_sequences(BATCH_SIZE, CHUNK, burn_in=1, boundary="cross")
    observation, reward = torch.from_numpy(batch.observation.copy()), torch.from_numpy(batch.reward)
    state = torch.from_numpy(batch.extras["latent"][:, 0].copy())
    if not with_latents:
        state = torch.zeros_like(state)
    states, errors = [], []
    for t in range(1, CHUNK + 1):
        first = torch.from_numpy(batch.first[:, t])
        state = torch.where(first[:, None], torch.zeros_like(state), state)  # another episode
        predicted, state = model(observation[:, t], state)
        states.append(state)
        errors.append((predicted - reward[:, t]) ** 2)
    loss = torch.stack(errors).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    latents = torch.stack(states, 1).detach().numpy()
    buffer.update(batch.id[:, 1:], latent=latents)
    return float(loss.detach())


def run(path, steps, seed, with_latents=True):
    """Act and learn in turns; the mean error of the last tenth of the updates."""
    torch.manual_seed(seed)
    env, model, errors = Recall(seed), Model(), []
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    fields = {"frame": mmreplay.Field((2,), "float32"), "action": mmreplay.Field((), "int64")}
    latent = {"latent": mmreplay.Field((WIDTH,), "float32")}
    with mmreplay.ReplayBuffer(path, **fields, stack=None, derived=latent, seed=seed) as buffer:
        observation, state = env.reset(), torch.zeros(1, WIDTH)
        buffer.reset(observation)
        for step in range(steps):
            with torch.no_grad():
                _, state = model(torch.from_numpy(observation)[None], state)
            observation, reward, over = env.step()
            buffer.step(0, reward, observation, truncated=over, latent=state[0].numpy())
            if over:
                observation, state = env.reset(), torch.zeros(1, WIDTH)
                buffer.reset(observation)
            if step > 1_000 and step % 4 == 0:
                errors.append(train(model, optimizer, buffer, with_latents))
    return float(np.mean(errors[-len(errors) // 10 :]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8_000)
    args, began = parser.parse_args(), time.process_time()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        stored = run(Path(folder) / "stored.zarr", args.steps, args.seed)
        zeros = run(Path(folder) / "zeros.zarr", args.steps, args.seed, with_latents=False)
    result = {"seed": args.seed, "error": round(stored, 3), "error_from_zeros": round(zeros, 3)}
    print(json.dumps(result | {"seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main()
