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
from mmreplay import Field
from mmreplay.format import plan
from mmreplay.format.layout import LOGS
from mmreplay.maintenance.copy_lane import read_rows
from mmreplay.reading.vector_reader import VectorReader
from tests.support.disks.faults import kill
from tests.support.disks.trees import contents
from tests.support.effort import THOROUGH, by_effort
from tests.support.oracle import checks
from tests.support.oracle.vector_pair import FIELDS, of_writer
from tests.support.oracle.vectors import assert_closed_lane_matches
from tests.support.power_cut.layouts import SHORT_CHUNKS
from tests.support.tampering import flips
from tests.support.tampering.damage import Damage, VectorDamage
from tests.support.tampering.repairs import check_kept

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
    last = lane.stop - 1 if kept and lane.stop < lane.head else None
    for start, end in lane.later if skip else ():
        kept += range(start, end)
    assert base <= (lane.base if lane.stop else 0), what
    floor = lane.base if lane.stop else 0
    for path, column in new.items():
        expected = old[path][kept]
        if last is not None and not path.startswith(("frames", "resets")):
            # The newest row before the damage has become a final row.
            expected[last] = 0
            if path == "non_terminals":
                begins = old["resets"][last]
                expected[last] = 1 if begins or not last else expected[last - 1]
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


VECTORS = ("vector, evicted", "vector, large")  # of compressed ones: unit/maintenance/repair


def logs(root):
    """Every column of a vector lane, by log and path, and the base of each log."""
    reader = VectorReader(root)
    rows = {
        (log.path.name, path): np.concatenate(
            [part for _, part in read_rows(log, spec, log.base, log.head)]
            or [np.zeros((0, *spec.row_shape), spec.dtype)]
        )
        for log in reader.logs
        for path, spec in log.specs.items()
    }
    return {log.path.name: log.base for log in reader.logs}, rows


def episodes_from(root, tick):
    """The whole episodes that begin at some tick or later: their numbers, and all that they hold."""
    bases, rows = logs(root)
    first = rows["starts", "tick"]
    found = {}
    with mmreplay.open(root) as store:
        width = store.lanes[0].environments
        for place, one in enumerate(store.episodes):
            at, env = divmod(int(one["id"]), width)
            number = int(rows["ticks", "episode"][at - bases["ticks"], env])
            if at >= tick and first[number - bases["starts"]] == at:
                held = store.trajectory(place)
                parts = (held.observation, held.action, held.reward, held.non_terminal)
                ticks = range(at, at + len(held.reward))
                found[number] = ticks, [np.asarray(part).tobytes() for part in parts]
    return found


@pytest.mark.parametrize("skip", [False, True], ids=["prefix", "skip"])
@pytest.mark.parametrize("name", VECTORS)
def test_repair_keeps_the_ticks_before_the_damage_and_the_sound_episodes_after_it(
    tmp_path, name, skip, monkeypatch
):
    monkeypatch.setattr(plan, "_NUMBER_ROWS", SHORT_CHUNKS["_NUMBER_ROWS"])
    monkeypatch.setattr(plan, "_SCALAR_ROWS", SHORT_CHUNKS["_SCALAR_ROWS"])
    original, root = tmp_path / "original.zarr", tmp_path / "store.zarr"
    flips.build(original, flips.KINDS[name])
    bases, before = logs(original)
    luck = random.Random(f"{name} {skip}" if not THOROUGH else None)
    for _ in range(2 * N_TRIALS):
        shutil.copytree(original, root)
        damage = VectorDamage(root)
        damage.harm(luck, luck.choice([1, 1, 2, 3]))
        harmed, what = contents(root), str(damage)
        both = (damage.ticks, damage.starts)
        try:
            done = mmreplay.repair(root, skip_damaged=skip)
        except mmreplay.CorruptStoreError:
            assert any(log.layout_lost or log.layout_changed for log in both), what
            assert contents(root) == harmed, what
            shutil.rmtree(root)
            continue
        assert not any(log.layout_lost for log in both), what
        report = mmreplay.verify(root)
        assert (report.findings, report.state) == ([], "closed"), what
        stop = damage.stop(before["ticks", "episode"])
        if damage.starts.lost:
            check_left_out(damage, original, root, done, stop - bases["ticks"], what)
            forget(tmp_path, harmed, done, what)
            continue
        now, after = logs(root)
        for (log, path), column in before.items() if stop else ():
            end = stop if log == "ticks" else min(damage.starts.lost, default=damage.starts.head)
            if path in damage.starts.derived:
                continue  # of starts that no kept tick names, nothing tells it
            expected, found = column[: end - bases[log]].copy(), after[log, path]
            found = found[max(bases[log] - now[log], 0) :][: len(expected)]
            expected = expected[max(now[log] - bases[log], 0) :]
            if path == "ends" and done.changed:  # all episodes are over
                expected[-1] = before["ticks", "episode"][stop - 1 - bases[log]] >= 0
            assert found.tobytes() == expected.tobytes(), (what, log, path)
        if skip:
            later = [
                held
                for number, (ticks, held) in episodes_from(original, stop).items()
                if number not in damage.starts.lost and not damage.ticks.lost & set(ticks)
            ]
            kept = [held for _, held in episodes_from(root, stop).values()]
            assert [held for held in later if held not in kept] == [], what
        else:
            assert done.kept == max(stop - bases["ticks"], 0), what
            assert len(after["ticks", "rewards"]) == max(stop - now["ticks"], 0), what
        forget(tmp_path, harmed, done, what)


FLUSHED, TICKS = 45, 60
FRAMES = {"raw": Field((3,), "float32", "raw", chunk=8), "lz4": Field((3,), "float32", "lz4", 2, 8)}


def crashed(path, frame, luck):
    """The model of a lane of many environments that a kill left, some ticks after a flush."""
    writer = mmreplay.create(path, **(FIELDS | {"frame": frame}), lanes=4, flush_s=0)
    model = of_writer(writer, luck.randrange(1 << 30))
    closed = luck.choice([0, 0, 20])
    model.play(closed)
    if closed:
        model.writer.close()
        model.reopened(mmreplay.create(path, append=True, flush_s=0))
    model.play(FLUSHED - closed)
    model.writer.flush()
    model.play(TICKS - FLUSHED)
    if luck.random() < 0.5:
        model.writer._background.finish_tasks()
    kill(model.writer)
    return model


def least_kept(path, lost):
    """Ticks that a lane holds for sure without these files; None if it may be refused."""
    names = {one.parent.name for one in lost if one.name == "zarr.json"}
    if path / "zarr.json" in lost and names & {"actions", "rewards", "x"}:
        return None  # nothing tells what a step holds
    live = {log: {one.name for one in lost if one.parent == path / log / ".live"} for log in LOGS}
    if any(one.parent.name == "frames" for one in lost):
        return None  # of frames nothing else tells the layout, but where they are raw
    if {"state", "checkpoint"} <= live["starts"] or {"state", "checkpoint"} <= live["ticks"]:
        return None
    tails = [log for log in LOGS if "frames.tail" in live[log]]
    if not tails:
        return FLUSHED if live["ticks"] & {"state"} else TICKS
    return 0


@pytest.mark.parametrize("codec", FRAMES)
def test_what_is_kept_of_a_crashed_lane_without_documents_or_live_files_is_right(
    tmp_path, codec, monkeypatch, quick_disk
):
    for name in ("_NUMBER_ROWS", "_START_ROWS"):
        monkeypatch.setattr(plan, name, 16)
    root, luck = tmp_path / "store.zarr", random.Random(codec if not THOROUGH else None)
    for _ in range(10 * N_TRIALS):
        model = crashed(root, FRAMES[codec], luck)
        files = [one for one in root.rglob("*") if one.name == "zarr.json" or ".live" in one.parts]
        lost = luck.sample(sorted(one for one in files if one.is_file()), luck.choice([1, 1, 2, 3]))
        for one in lost:
            one.unlink() if luck.random() < 0.6 else one.write_bytes(luck.randbytes(100))
        what, harmed = [str(one.relative_to(root)) for one in lost], contents(root)
        least = least_kept(root, lost)
        try:
            done = mmreplay.repair(root)
        except mmreplay.CorruptStoreError:
            assert least is None, what
            assert contents(root) == harmed, what
            shutil.rmtree(root)
            continue
        assert done.kept >= (least or 0), what
        assert done.kept + done.lost == TICKS or done.at_least, what
        model.end_session()
        model.cut(done.kept, VectorReader(root).starts.head)
        assert mmreplay.verify(root).findings == [], what
        assert_closed_lane_matches(model, root)
        forget(tmp_path, harmed, done, what)


def check_left_out(damage, original, root, done, n_ticks, what):
    """Without the episodes of lost starts; where ticks are damaged, too, at least so many are kept."""
    assert done.kept >= n_ticks, what
    if done.lanes[0].renumbered:
        return
    kept = set(check_kept(root, original).tolist())
    if damage.ticks.done:
        return
    bases, rows = logs(original)
    numbers = rows["ticks", "episode"].ravel()
    first = numbers.size and bases["ticks"] * rows["ticks", "episode"].shape[1]
    began = dict(enumerate(rows["starts", "tick"].tolist(), bases["starts"]))
    with mmreplay.open(original) as store:
        ids = store.ids.tolist()
    lost = {one for one in damage.starts.lost if began.get(one, 0) >= bases["ticks"]}
    assert kept == {one for one in ids if int(numbers[one - first]) not in lost}, what


def forget(folder, harmed, done, what):
    """Nothing was changed in the damaged store; it goes, and so does what was made of it."""
    if done.changed and done.before:
        assert contents(folder / "store.zarr.damaged") == harmed, what
    shutil.rmtree(folder / "store.zarr")
    shutil.rmtree(folder / "store.zarr.damaged", ignore_errors=True)


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
