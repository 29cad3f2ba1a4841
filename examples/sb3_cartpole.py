"""stable-baselines3: DQN on CartPole, once with its own replay buffer and once with one on disk.

    python examples/sb3_cartpole.py [--seed 0] [--steps 50000]

The same seed gives the same training with both: after it, every parameter of the networks has the
same bytes. Training ends early when 20 greedy episodes reach 475 points on average. The last line
that it prints is the result as JSON.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import gymnasium
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from mmreplay.adapters.stable_baselines3 import DiskReplayBuffer

SOLVED = 475


def train(seed, steps, **buffer):
    """A DQN, and the mean returns of its evaluations."""
    model = DQN(
        "MlpPolicy", gymnasium.make("CartPole-v1"), seed=seed, device="cpu",
        learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1_000,
        target_update_interval=10, train_freq=256, gradient_steps=128,
        exploration_fraction=0.16, exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256]}, **buffer,
    )  # fmt: skip
    evaluation = EvalCallback(
        Monitor(gymnasium.make("CartPole-v1")), eval_freq=2_560, n_eval_episodes=20, verbose=0,
        callback_on_new_best=StopTrainingOnRewardThreshold(SOLVED),
    )  # fmt: skip
    model.learn(steps, callback=evaluation)
    return model, evaluation.best_mean_reward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    own, _ = train(args.seed, args.steps)
    own_seconds = time.process_time() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        disk, best = train(
            args.seed, args.steps, replay_buffer_class=DiskReplayBuffer,
            replay_buffer_kwargs={"path": Path(folder) / "store.zarr", "stack": None},
        )  # fmt: skip
        seconds = time.process_time() - began
        disk.replay_buffer.close()

    assert disk.num_timesteps == own.num_timesteps
    pairs = zip(disk.policy.state_dict().values(), own.policy.state_dict().values(), strict=True)
    assert all(one.numpy().tobytes() == other.numpy().tobytes() for one, other in pairs)

    env = Monitor(gymnasium.make("CartPole-v1"))
    env.reset(seed=1_000 + args.seed)  # not the episodes that training was ended by
    mean, _ = evaluate_policy(disk, env, n_eval_episodes=20)
    result = {"seed": args.seed, "steps": disk.num_timesteps, "return": round(float(mean), 1)}
    result |= {"best": round(float(best), 1), "same_bytes": True}
    print(json.dumps(result | {"seconds": round(seconds, 1), "own_seconds": round(own_seconds, 1)}))


if __name__ == "__main__":
    main()
