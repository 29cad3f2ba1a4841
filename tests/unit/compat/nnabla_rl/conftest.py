"""Experiences as nnabla-rl has them, and a folder for temporary stores."""

import types

import numpy as np
import pytest

from tests.support.disks.scratch import scratch_directory


@pytest.fixture(autouse=True)
def in_memory(monkeypatch, tmp_path, quick_disk):  # pytest's own folders first
    """Temporary stores where nothing waits for a disk."""
    with scratch_directory() as folder:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        yield folder


def same(one, other):
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


def step(episode, t, end=None, kind="array"):
    """Step t of an episode, with states that no other episode has."""

    def state(number):
        part = np.array([episode, number], np.float32)
        return (part, np.uint8(number % 256), part[:1] * 2) if kind == "tuple" else part

    flag = 0.0 if end == "terminated" else 1.0
    info: dict = {"TimeLimit.truncated": True} if end == "truncated" else {}
    info |= {"episode": float(episode), "pair": np.array([t, episode])}
    return state(t), np.array([t]), 100.0 * episode + t, flag, state(t + 1), info


def episode_of(number, length, end, kind="array"):
    return [step(number, t, end if t == length - 1 else None, kind) for t in range(length)]


def known(experience):
    """What is stored of an experience: not the time limit in its info."""
    info = {k: v for k, v in experience[5].items() if k != "TimeLimit.truncated"}
    return (*experience[:5], info)


def goodness(counts, shares=None):
    """How many standard deviations chi-squared is off (Wilson and Hilferty 1931)."""
    shares = np.ones(counts.size) / counts.size if shares is None else shares
    expected = counts.sum() * shares
    freedom = counts.size - 1
    spread = 2 / (9 * freedom)
    squared = float(((counts - expected) ** 2 / expected).sum())
    return ((squared / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread)


@pytest.fixture(scope="session")
def experiences():
    """Experiences to append, and what compares them."""
    return types.SimpleNamespace(
        same=same, step=step, episode_of=episode_of, known=known, goodness=goodness
    )
