"""Repairs of damaged stores, and what must hold after them."""

import json

import mmreplay
from mmreplay import verify
from mmreplay.format import layout


def set_attributes(path, *, sealed=False, **changes):
    """Change attributes, and their crc32c if `sealed`."""
    document = json.loads(path.read_text())
    own = document["attributes"]["mmreplay"]
    own.update(changes)
    if sealed:
        own["crc32c"] = layout.digest(own)
    path.write_text(json.dumps(document))


def transitions(path, ids=None):
    with mmreplay.open(path) as store:
        wanted = store.ids if ids is None else ids
        return wanted, store.transitions(wanted, stack=3, n_step=1)


def arrays(batch):
    found = {"action": batch.action, "reward": batch.reward, "flag": batch.non_terminal}
    observation = (
        batch.observation if isinstance(batch.observation, dict) else {"": batch.observation}
    )
    following = batch.next_observation
    following = following if isinstance(following, dict) else {"": following}
    found |= {f"observation {key}": one for key, one in observation.items()}
    found |= {f"next {key}": one for key, one in following.items()}
    return found | batch.extras


def check_kept(path, original):
    """Whatever can be sampled of a store is what the original has at the same ids."""
    assert verify(path).findings == []
    ids, kept = transitions(path)
    if len(ids):
        _, known = transitions(original, ids)
        for name, one in arrays(kept).items():
            assert one.tobytes() == arrays(known)[name].tobytes(), name
    return ids
