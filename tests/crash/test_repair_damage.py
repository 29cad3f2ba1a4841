"""Any damage to a store, several places at once: `repair` keeps exactly what is sound.

Invariant: what must be left is worked out from the damage that was done, by other code than that
which repairs; no byte of the damaged store changes. Only where the one copy of how an array is laid
out is lost, repair refuses.
"""

import random
import re
import shutil

import numpy as np
import pytest

import mmreplay
from tests.support.disks.trees import contents
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.tampering import flips
from tests.support.tampering.damage import Damage

pytestmark = [pytest.mark.timeout(0 if THOROUGH else 900), pytest.mark.deep]

N_TRIALS = by_effort(1, 3, 25)  # of each kind of store and each way to repair
GONE_ON = ("raw", "evicted, lanes", "priorities")


def columns(root):
    """Of each lane, its base and all its columns."""
    with mmreplay.open(root) as store:
        return [
            (
                view.base,
                {path: one[:] for path, one in checks.columns_of(view, store.schema).items()},
            )
            for view in store.lanes
        ]


def check_lane(lane, before, after, skip, what):
    """The rows of a repaired lane are those that the damage has left."""
    (_, old), (base, new) = before, after
    kept = list(range(lane.stop))
    begins, finals = [], [lane.stop - 1] if kept and lane.stop < lane.head else []
    for start, end in lane.later if skip else ():
        begins.append(len(kept))
        kept += range(start, end)
        finals.append(len(kept) - 1)
    assert base <= (lane.base if lane.stop else 0), what
    floor = lane.base if lane.stop else 0
    for path, column in new.items():
        expected = old[path][kept]
        if path == "resets":  # a part after the damage begins an episode
            expected[begins] = 1
        if not path.startswith(("frames", "resets")):
            for last in finals:  # the newest row of a part has become a final row
                expected[last] = 0
                if path == "non_terminals":
                    alone = old["resets"][kept[last]] or not last
                    expected[last] = 1 if alone else expected[last - 1]
        assert column.shape == expected.shape, (what, path)
        assert column[floor:].tobytes() == expected[floor:].tobytes(), (what, path)


@pytest.mark.parametrize("skip", [False, True], ids=["prefix", "skip"])
@pytest.mark.parametrize(
    "name", sorted(name for name, kind in flips.KINDS.items() if kind.envs is None)
)
def test_repair_keeps_exactly_what_is_sound(tmp_path, name, skip, measured):
    original = tmp_path / "original.zarr"
    kind = flips.KINDS[name]
    flips.build(original, kind)
    before = columns(original)
    luck = random.Random(f"{name} {skip}" if not THOROUGH else None)
    n_damages = n_refused = 0
    for trial in range(N_TRIALS):
        root = tmp_path / "store.zarr"
        shutil.copytree(original, root)
        damage = Damage(root)
        damage.harm(luck, luck.choice([1, 1, 2, 3, 5]))
        harmed, what = contents(root), str(damage)
        n_damages += sum(len(lane.done) for lane in damage.lanes)
        try:
            done = mmreplay.repair(root, skip_damaged=skip)
        except mmreplay.CorruptStoreError:
            assert any(lane.layout_lost or lane.layout_changed for lane in damage.lanes), what
            assert contents(root) == harmed, what
            assert sorted(one.name for one in tmp_path.iterdir()) == [
                "original.zarr",
                "store.zarr",
            ], what
            n_refused += 1
            shutil.rmtree(root)
            continue
        assert not any(lane.layout_lost for lane in damage.lanes), what
        report = mmreplay.verify(root)
        assert (report.findings, report.state) == ([], "closed"), what
        after = columns(root)
        for lane, old, new in zip(damage.lanes, before, after, strict=True):
            check_lane(lane, old, new, skip, what)
        if done.changed:
            aside = tmp_path / "store.zarr.damaged"
            assert contents(aside) == harmed, what
        if trial < 3 and name in GONE_ON:
            go_on(root, kind)
            if done.changed:
                assert contents(aside) == harmed, what
        shutil.rmtree(root)
        shutil.rmtree(tmp_path / "store.zarr.damaged", ignore_errors=True)
        assert [one.name for one in tmp_path.iterdir()] == ["original.zarr"], what
    subject = re.sub("[^a-z0-9]+", "_", f"repair {name} {'skip' if skip else 'prefix'}")
    result = measured(subject, store=name, skip_damaged=skip)
    result.add("stores repaired", N_TRIALS - n_refused, "")
    result.add("stores refused", n_refused, "", note="the only copy of a layout is lost")
    result.add("places damaged", n_damages, "")


def go_on(root, kind):
    """The classes that wrote it open it, sample from it and go on."""
    buffer_class = kind.buffer or mmreplay.ReplayBuffer
    with buffer_class(root, stack=2, flush_s=0) as buffer:
        schema = buffer.writer.schema
        n = len(buffer.store.lanes)
        frame = np.zeros((n, *schema.frames["frame"].shape), schema.frames["frame"].dtype)
        action = np.zeros((n, *schema.action.shape), schema.action.dtype)
        extras = {k: np.zeros((n, *one.shape), one.dtype) for k, one in schema.extras.items()}
        if isinstance(buffer.writer, mmreplay.Writer):
            frame, action = frame[0], action[0]
            extras = {k: one[0] for k, one in extras.items()}
        rewards = 1.0 if isinstance(buffer.writer, mmreplay.Writer) else np.ones(n)
        buffer.reset(frame)
        for _ in range(20):
            ends = False if isinstance(buffer.writer, mmreplay.Writer) else np.zeros(n, bool)
            buffer.step(action, rewards, frame, ends, ends, **extras)
        assert np.isin(buffer.sample(64).id, buffer.ids).all()
    checks.check_verified(root)
