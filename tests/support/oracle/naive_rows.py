"""Transitions of rows, and the oldest one that a capacity leaves, by looking at every row."""


def naive_transitions(starts, floor, head):
    """Row i is a transition if and only if row i + 1 is committed and is no reset."""
    resets = set(starts)
    return [row for row in range(floor, head) if row + 1 < head and row + 1 not in resets]


def naive_first(starts, floor, head, capacity):
    transitions = naive_transitions(starts, floor, head)
    if capacity is None or len(transitions) <= capacity:
        return min(floor, head)
    return transitions[-capacity - 1] + 1


def random_starts(random, start, stop, rate):
    return [row for row in range(start, stop) if random.random() < rate]
