"""Offline reinforcement learning in its smallest form: record, load, imitate, play.

    python examples/offline_cartpole.py

Records CartPole with the policy `scripted` below through the command line, reads the recording
back, fits a linear policy to it by stochastic gradient descent, and plays with what it learned. It
needs numpy and gymnasium, and prints the mean return at random, recorded and learned.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import gymnasium
import numpy as np

import mmreplay

STEPS = 20_000
rng = np.random.default_rng(0)


def scripted(observation):
    """Push the cart to the side that the pole falls to; now and then do something else."""
    position, velocity, angle, angular_velocity = observation
    if rng.random() < 0.05:
        return int(rng.integers(2))
    return int(angle + 0.3 * angular_velocity + 0.02 * position + 0.04 * velocity > 0)


def record(path):
    """The command `mmreplay record`, in this folder, where it finds this file as a module."""
    command = [sys.executable, "-m", "mmreplay_cli", "record", "CartPole-v1", str(path)]
    options = ["--steps", str(STEPS), "--policy", f"{Path(__file__).stem}:scripted", "--seed", "0"]
    subprocess.run(command + options, check=True, cwd=Path(__file__).parent)  # noqa: S603  our own


def clone(data, epochs=5, batch_size=64, learning_rate=0.5):
    """Logistic regression on the recorded actions by SGD: weights and bias of a linear policy."""
    scale = data.sample(4096).observation.std(axis=0)
    weights, bias = np.zeros(4), 0.0
    for batch in data.batches(batch_size, epochs=epochs, shuffle=True):
        inputs = batch.observation / scale
        error = 1 / (1 + np.exp(-inputs @ weights - bias)) - batch.action
        weights -= learning_rate * inputs.T @ error / len(error)
        bias -= learning_rate * error.mean()
    return weights / scale, bias


def play(policy, episodes=20):
    """The mean return of a policy."""
    env = gymnasium.make("CartPole-v1")
    total = 0.0
    for episode in range(episodes):
        observation, _ = env.reset(seed=1000 + episode)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / episodes


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cartpole.zarr"
        record(path)
        with mmreplay.open(path) as store:
            recorded = store.episodes["return"].mean()
        weights, bias = clone(mmreplay.load(path, seed=0))

    chance = play(lambda _: int(rng.integers(2)))
    learned = play(lambda observation: int(observation @ weights + bias > 0))
    print(f"mean return: random {chance:.0f}, recorded {recorded:.0f}, learned {learned:.0f}")
    assert learned >= 400, learned


if __name__ == "__main__":
    main()
