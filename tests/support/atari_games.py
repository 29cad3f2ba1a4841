"""Episodes of stacked screens, as an environment gives them and as they must come back."""

import numpy as np


def screens_of(number, length, shape=(6, 5)):
    """One screen more than steps; no two alike."""
    rng = np.random.default_rng([number, length])
    return rng.integers(0, 256, (length + 1, *shape), np.uint8)


def game(number, length, end, stack=4, dtype="float32", single=False):
    """An episode as an environment with stacked screens gives it, and as it must come back."""
    pixels = screens_of(number, length)
    stacks = [pixels[[max(t - j, 0) for j in reversed(range(4))]] for t in range(length + 1)]
    wanted = [pixels[[max(t - j, 0) for j in reversed(range(stack))]] for t in range(length + 1)]
    shown = [one[-1] if single else one for one in stacks]
    if dtype != "uint8":
        shown = [one.astype(dtype) / np.dtype(dtype).type(255) for one in shown]
    wanted = [one.astype(np.float32) / np.float32(255) for one in wanted]
    steps, expected = [], []
    for t in range(length):
        flag = 0.0 if end == "terminated" and t == length - 1 else 1.0
        rest = (np.array([t]), float(1000 * number + t), flag)
        steps.append((shown[t], *rest, shown[t + 1], {}))
        expected.append((wanted[t], *rest, wanted[t + 1], {}))
    return steps, expected
