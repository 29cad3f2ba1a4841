"""Minari: datasets of whole episodes, from which transitions are picked."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from benchmarks.peers.peer import Setup
from benchmarks.peers.steps import ACTION, STACK, Plain, Promise, Step

__all__ = ["Minari"]

_NAME = "peers/frames-v0"


class Minari:
    """A dataset without loss (`jpeg_encoding=False`); it reads an episode to give a part of it."""

    promise = Promise()

    def __init__(self, setup: Setup) -> None:
        # Read by the library whenever it looks for datasets.
        os.environ["MINARI_DATASETS_PATH"] = str(setup.folder)
        import minari

        self._minari, self._setup = minari, setup
        self._dataset: Any = None
        self._running: dict[str, list[Any]] = {}
        self._many: list[tuple[Any, ...]] = []
        if (setup.folder / _NAME).exists():
            self._dataset = minari.load_dataset(_NAME)
        self._lengths: Any = None
        self._generator = np.random.default_rng(0)

    def append(self, step: Step) -> None:
        if not self._running:
            self._running = {
                "observations": [step.frame],
                "actions": [],
                "rewards": [],
                "terminations": [],
                "truncations": [],
            }
        row = step.next_frame, step.action, step.reward, step.terminated, step.truncated
        for column, value in zip(self._running.values(), row, strict=True):
            column.append(value)
        if step.terminated or step.truncated:
            self._write(self._running)
            self._running = {}

    def extend(self, tick: tuple[Any, ...]) -> None:
        self._many.append(tick)

    def finish(self) -> None:
        """Write what runs as episodes."""
        if self._running:
            self._running["truncations"][-1] = True
            self._write(self._running)
            self._running = {}
        for env in range(self._setup.n_envs):
            columns = [[tick[i][env] for tick in self._many] for i in range(5)]
            observations, following, actions, rewards, never = columns
            self._write(
                {
                    "observations": [*observations, following[-1]],
                    "actions": actions,
                    "rewards": rewards,
                    "terminations": never,
                    "truncations": [*never[:-1], True],
                }
            )
        self._many = []

    def _write(self, columns: dict[str, list[Any]]) -> None:
        from gymnasium import spaces
        from minari.data_collector import EpisodeBuffer

        # Copied: a view of one frame would keep its whole block in memory.
        columns["observations"] = [np.array(one) for one in columns["observations"]]
        episode = EpisodeBuffer(**columns)
        if self._dataset is not None:
            self._dataset.update_dataset_from_buffer([episode])
            return
        shape = self._setup.shape
        self._dataset = self._minari.create_dataset_from_buffers(
            _NAME,
            [episode],
            observation_space=spaces.Box(0, 255, shape, np.uint8)
            if self._setup.is_frames
            else spaces.Box(-np.inf, np.inf, shape, np.float32),
            action_space=spaces.Discrete(1 << 24)
            if self._setup.is_frames
            else spaces.Box(-np.inf, np.inf, (ACTION,), np.float32),
            jpeg_encoding=False,
        )

    def sample(self, n: int) -> dict[str, Any]:
        if self._lengths is None:
            metadata = self._dataset.storage.get_episode_metadata(self._dataset.episode_indices)
            self._lengths = np.cumsum([one["total_steps"] for one in metadata])
        numbers = self._generator.integers(0, self._lengths[-1], n)
        episodes = self._lengths.searchsorted(numbers, "right")
        steps = numbers - np.where(episodes > 0, self._lengths[episodes - 1], 0)
        back = np.arange(1 - STACK, 1) if self._setup.is_frames else np.zeros(1, np.int64)
        observations, following, rest = [], [], []
        read = {one.id: one for one in self._dataset.iterate_episodes(np.unique(episodes))}
        for number, step in zip(episodes.tolist(), steps.tolist(), strict=True):
            episode = read[number]
            observations.append(episode.observations[np.maximum(back + step, 0)])
            following.append(episode.observations[np.maximum(back + step + 1, 0)])
            action, reward = episode.actions[step], episode.rewards[step]
            rest.append((action, reward, episode.terminations[step]))
        actions, rewards, terminated = zip(*rest, strict=True)
        return {
            "observation": np.stack(observations),
            "next_observation": np.stack(following),
            "action": np.array(actions),
            "reward": np.array(rewards, np.float32),
            "terminated": np.array(terminated),
        }

    def plain(self, batch: dict[str, Any]) -> Plain:
        observation, following, action, reward, terminated = batch.values()
        if not self._setup.is_frames:
            observation, following, action = observation[:, 0], following[:, 0], action[:, 0]
        return Plain(observation, following, action, reward, terminated)

    def save(self) -> None:
        """Episodes that ended are in the file."""

    def __len__(self) -> int:
        return 0 if self._dataset is None else self._dataset.total_steps
