"""DQN in one file, in the style of CleanRL, with a replay buffer that survives a kill.

    python examples/dqn_cleanrl_style.py --total-timesteps 50000 --run runs/cartpole

Kill it, and run the same line again: it goes on from the network's last checkpoint, with every
step that was taken up to the kill in the buffer. It needs torch and gymnasium. What concerns the
buffer is marked with `# mmreplay`.
"""

import argparse
import time
from pathlib import Path

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.nn import functional

import mmreplay
from mmreplay.adapters.torch import to_tensors


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, default=Path("runs/cartpole"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--total-timesteps", type=int, default=50_000)
    parser.add_argument("--learning-rate", type=float, default=2.5e-4)
    parser.add_argument("--buffer-size", type=int, default=10_000)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--target-network-frequency", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--start-e", type=float, default=1.0)
    parser.add_argument("--end-e", type=float, default=0.05)
    parser.add_argument("--exploration-fraction", type=float, default=0.5)
    parser.add_argument("--learning-starts", type=int, default=1_000)
    parser.add_argument("--train-frequency", type=int, default=10)
    parser.add_argument("--checkpoint-frequency", type=int, default=2_000)
    return parser.parse_args()


def q_network(env):
    n_inputs, n_actions = int(np.prod(env.observation_space.shape)), int(env.action_space.n)
    return nn.Sequential(
        nn.Linear(n_inputs, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, n_actions)
    )


def epsilon_at(args, step):
    done = min(step / (args.exploration_fraction * args.total_timesteps), 1.0)
    return args.start_e + done * (args.end_e - args.start_e)


def save(path, step, buffer, **parts):
    buffer.flush()  # mmreplay: rows first, so that the network never knows more than the store
    saved = {name: part.state_dict() for name, part in parts.items()}
    torch.save({**saved, "buffer": buffer.state_dict(), "step": step}, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)  # the old one or the new one, whole


if __name__ == "__main__":
    args = parse_args()
    args.run.mkdir(parents=True, exist_ok=True)
    checkpoint = args.run / "checkpoint.pt"
    torch.set_num_threads(1)  # so small a network is faster so
    torch.manual_seed(args.seed)

    env = gymnasium.make(args.env_id)
    q = q_network(env)
    target = q_network(env)
    target.load_state_dict(q.state_dict())
    optimizer = torch.optim.Adam(q.parameters(), lr=args.learning_rate)
    buffer = mmreplay.ReplayBuffer(  # mmreplay: made, or opened again with all that is in it
        args.run / "buffer.zarr",
        args.buffer_size,
        stack=None,
        gamma=args.gamma,
        seed=args.seed,
        env=env,
    )
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        q.load_state_dict(saved["q"])
        target.load_state_dict(saved["target"])
        optimizer.load_state_dict(saved["optimizer"])
        buffer.load_state_dict(saved["buffer"])  # mmreplay
        step = saved["step"]
    print(f"begins at step {step}, with {len(buffer)} transitions", flush=True)

    begin, start_time, returns, total = step, time.time(), [], 0.0
    rng = np.random.default_rng([args.seed, step])
    obs, _ = env.reset(seed=args.seed + step)
    env.action_space.seed(args.seed + step)
    buffer.reset(obs)  # mmreplay
    while step < args.total_timesteps:
        if rng.random() < epsilon_at(args, step):
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                action = int(q(torch.from_numpy(obs)).argmax())
        obs, reward, terminated, truncated, _ = env.step(action)
        buffer.step(action, reward, obs, terminated, truncated)  # mmreplay
        step += 1
        total += float(reward)
        if terminated or truncated:
            returns.append(total)
            if len(returns) % 50 == 0:
                rate = (step - begin) / (time.time() - start_time)
                print(f"step {step}, return {np.mean(returns[-50:]):.0f}, {rate:.0f} steps/s")
            total = 0.0
            obs, _ = env.reset()
            buffer.reset(obs)  # mmreplay

        if step > args.learning_starts and step % args.train_frequency == 0:
            data = to_tensors(buffer.sample(args.batch_size))  # mmreplay
            with torch.no_grad():
                best = target(data.next_observation).max(dim=1).values
                td_target = data.reward + data.discount * best  # discount: 0 after a terminal step
            old = q(data.observation).gather(1, data.action[:, None]).squeeze(1)
            loss = functional.mse_loss(old, td_target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % args.target_network_frequency == 0:
            target.load_state_dict(q.state_dict())
        if step % args.checkpoint_frequency == 0:
            save(checkpoint, step, buffer, q=q, target=target, optimizer=optimizer)

    save(checkpoint, step, buffer, q=q, target=target, optimizer=optimizer)
    buffer.close()  # mmreplay: and it is an offline dataset
    print(f"done: {step} steps, return of the last 20 episodes {np.mean(returns[-20:] or 0):.0f}")
