"""The windows of an index by trying every step of every episode."""

from mmreplay.sampling.draws import Windows


def steps_of_episodes(index):
    """Ids of the steps of each episode that can be sampled."""
    ids = index.ids()
    if not ids.size:
        return []
    span = index.span(ids)
    firsts = span.steps.at(-span.back[:, None])[:, 0]
    return [ids[firsts == first] for first in sorted(set(firsts.tolist()))]


def naive_starts(index, windows):
    """As `starts_of`, of the steps of an index, ascending."""
    return sorted(starts_of(steps_of_episodes(index), windows))


def starts_of(episodes, windows):
    """Ids of the first steps after the burn-in, by trying every step of every episode."""
    out = []
    for steps in episodes:
        found = set()
        for offset in range(0, len(steps), windows.stride):
            if windows.boundary == "pad":
                found.add(int(steps[offset]))
            elif offset + windows.steps <= len(steps):
                found.add(int(steps[offset + windows.burn_in]))
        if windows.boundary == "shift":
            found.add(int(steps[max(len(steps) - windows.length, 0)]))
        out += sorted(found)
    return out


WINDOWS = [
    Windows(length, burn_in, boundary, stride)
    for length, burn_in in ((1, 0), (3, 0), (4, 2), (10, 1), (1, 5))
    for boundary in ("drop", "pad", "shift")
    for stride in (1, 2, 5)
]
