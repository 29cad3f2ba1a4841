"""What arrives is what a direct writer stores, whatever gets lost on the way."""

import pickle

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmreplay
from mmreplay import ClosedError, FailedStoreError, LockedError, SchemaError
from mmreplay.writing.env_fields import env_fields
from tests.support.sent_steps import (
    FATES,
    FIELDS,
    SMALL,
    Clock,
    LossyTransport,
    assert_same_experience,
    make_calls,
    script,
    sender,
    write_directly,
)

KINDS = pytest.mark.parametrize("n", [None, 1, 3])


@KINDS
@pytest.mark.parametrize("fields", [FIELDS, SMALL], ids=["dict", "array"])
def test_without_losses_a_store_is_that_of_a_direct_writer(tmp_path, n, fields):
    calls = script(0, n, fields, 100)
    transport = LossyTransport(tmp_path / "sent.zarr", fields)
    with sender(transport, "actor", n) as writer:
        make_calls(writer, calls)
        assert writer.n_again == 0
    transport.receiver.close()
    write_directly(tmp_path / "direct.zarr", fields, n, calls, [])
    assert_same_experience(tmp_path / "sent.zarr", tmp_path / "direct.zarr")


@given(st.integers(0, 1 << 30), st.sampled_from([None, 1, 3]), st.booleans(), st.data())
def test_lost_calls_and_killed_receivers_cut_episodes_and_nothing_else(
    tmp_path_factory, seed, n, is_dict, data
):
    folder, fields = tmp_path_factory.mktemp("lossy"), FIELDS if is_dict else SMALL
    fates = data.draw(st.lists(st.sampled_from(FATES), max_size=12))
    steps = data.draw(st.sampled_from([1, 3, 16]))
    calls, clock = script(seed, n, fields), Clock()
    transport = LossyTransport(folder / "sent.zarr", fields, fates)
    writer = sender(transport, "actor", n, clock, steps=steps, patience_s=1e9)
    rng = np.random.default_rng(seed)
    for call in calls:
        clock.now += rng.choice([0.0, 0.1])
        make_calls(writer, [call])
    writer.close()
    transport.receiver.close()
    cuts = transport.opened
    write_directly(folder / "direct.zarr", fields, n, calls, cuts)
    assert_same_experience(folder / "sent.zarr", folder / "direct.zarr", cuts)


@KINDS
def test_each_step_arrives_once_and_in_order(tmp_path, n):
    """Counted by the number of the step, stored as its action, through every kind of loss."""
    fates = ["done", *FATES[1:], "done", *FATES[:0:-1]] * 3
    transport = LossyTransport(tmp_path / "x.zarr", SMALL, fates)
    writer = sender(transport, "actor", n, steps=4, patience_s=1e9)
    frames = np.zeros(((n,) if n else ()) + (40, 40), "uint8")
    writer.reset(frames)
    for t in range(200):
        zeros = np.zeros(n, bool) if n else False
        writer.step(np.full(n, t) if n else t, np.zeros(n) if n else 0, frames, zeros, zeros)
    writer.close()
    transport.receiver.close()
    with mmreplay.open(tmp_path / "x.zarr") as store:
        actions = store.lanes[0].actions[:].reshape(200, n or 1)
        assert (actions == np.arange(200)[:, None]).all()


def test_a_sender_whose_lane_was_opened_by_another_is_refused(tmp_path):
    transport = LossyTransport(tmp_path / "x.zarr", SMALL)
    old = sender(transport, "actor", None, steps=2)
    frame = np.zeros((40, 40), "uint8")
    old.reset(frame)
    old.step(1, 0, frame)
    new = sender(transport, "actor", None, steps=2)
    new.reset(frame)
    new.step(2, 0, frame)
    with pytest.raises(LockedError, match="another sender"):
        old.flush()
    new.close()
    transport.receiver.close()
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert store.lanes[0].actions[:].tolist() == [2]


def test_a_sender_that_comes_back_after_another_has_written_is_refused(tmp_path):
    """Also by a new receiver, which knows no tokens."""
    transport = LossyTransport(tmp_path / "x.zarr", SMALL)
    old = sender(transport, "actor", None)
    frame = np.zeros((40, 40), "uint8")
    old.reset(frame)
    old.step(1, 0, frame)
    with sender(transport, "actor", None) as new:
        new.reset(frame)
        for _ in range(3):
            new.step(2, 0, frame)
    transport.kill()
    with pytest.raises(LockedError, match="another sender"):
        old.flush()
    transport.receiver.close()


def test_a_block_is_appended_at_the_head_its_sender_knows_or_not_at_all(tmp_path, monkeypatch):
    """So one that is repeated, or comes after a lost one, changes nothing."""
    transport, blocks = LossyTransport(tmp_path / "x.zarr", SMALL), []
    append = transport.append
    monkeypatch.setattr(
        transport, "append", lambda *values: blocks.append(values) or append(*values)
    )
    writer = sender(transport, "actor", None)
    frame = np.zeros((40, 40), "uint8")
    writer.reset(frame)
    writer.step(1, 0, frame)
    writer.flush()
    name, token, _, block = blocks[0]
    receiver = transport.receiver
    for start in (0, 2):
        assert receiver.append(name, token, start, block) is None
    assert receiver.append("another", token, 0, block) is None
    assert receiver.append(name, token, 1, block) == 2
    receiver.close()


def test_the_memory_of_a_sender_that_waits_is_that_of_two_blocks(tmp_path, monkeypatch):
    """It asks for the answer of the first block before it sends a third one."""
    transport = LossyTransport(tmp_path / "x.zarr", SMALL)
    waited = []

    class Late:
        def __init__(self, reply):
            self.reply = reply

        def done(self):
            return False

        def result(self):
            waited.append(transport.n_blocks)
            return self.reply.result()

    append = transport.append
    monkeypatch.setattr(transport, "append", lambda *values: Late(append(*values)))
    clock = Clock()
    writer = sender(transport, "actor", None, clock, steps=4)
    frame = np.zeros((40, 40), "uint8")
    writer.reset(frame)
    for _ in range(5):  # a block of one step is under way, and the next one is full
        clock.now += 1  # one that is old does not wait for the answer
        writer.step(1, 0, frame)
    assert (transport.n_blocks, waited) == (1, [])
    writer.step(1, 0, frame)
    assert (transport.n_blocks, waited) == (2, [1])
    writer.close()
    transport.receiver.close()


def test_a_block_is_sent_when_it_is_old(tmp_path):
    transport, clock = LossyTransport(tmp_path / "x.zarr", SMALL), Clock()
    writer = sender(transport, "actor", None, clock)
    frame = np.zeros((40, 40), "uint8")
    writer.reset(frame)
    for t in range(4):
        clock.now = t * 0.1
        writer.step(t, 0, frame)
    assert transport.n_blocks == 1  # with the steps at 0, 0.1 and 0.2
    assert transport.receiver._lanes["actor"].writer.rows == 3
    writer.close()
    transport.receiver.close()


def test_a_receiver_that_stays_away_is_an_error_and_the_same_call_goes_on(tmp_path):
    transport, clock = LossyTransport(tmp_path / "x.zarr", SMALL), Clock()
    writer = sender(transport, "actor", None, clock, steps=1, patience_s=30)
    frame = np.zeros((40, 40), "uint8")
    writer.reset(frame)
    writer.step(0, 0, frame)
    transport.fates = iter(["lost before"] * 1000)
    writer.step(1, 0, frame)
    with pytest.raises(FailedStoreError, match="has not answered for 30 s"):
        writer.step(2, 0, frame)
    assert 30 <= clock.now < 33
    transport.fates = iter(())
    writer.step(2, 0, frame)
    writer.close()
    transport.receiver.close()
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert store.lanes[0].actions[:].tolist() == [0, 1, 2]


def test_steps_that_the_receivers_machine_lost_are_gone_and_the_actor_goes_on(tmp_path):
    """A power cut takes what was acknowledged after the last flush."""
    transport = LossyTransport(tmp_path / "x.zarr", SMALL)
    writer = sender(transport, "actor", None, steps=4)
    frame = np.zeros((40, 40), "uint8")
    writer.reset(frame)
    for t in range(8):
        writer.step(t, 0, frame)
    writer.flush()
    transport.receiver.close()
    transport.path = tmp_path / "y.zarr"  # a store without them
    transport.start()
    for t in range(8, 12):
        writer.step(t, 0, frame)
    writer.close()
    transport.receiver.close()
    with mmreplay.open(tmp_path / "y.zarr") as store:
        assert store.lanes[0].actions[:].tolist() == [8, 9, 10, 11]


@KINDS
def test_what_does_not_fit_is_refused_at_the_call_and_not_sent(tmp_path, n):
    transport = LossyTransport(tmp_path / "x.zarr", FIELDS)
    writer = sender(transport, "actor", n)
    lead = (n,) if n else ()
    frame = {"image": np.zeros((*lead, 4, 4), "uint8"), "state": np.zeros((*lead, 3), "float32")}
    flags = (np.zeros(lead, bool),) * 2 if n else (False, False)
    step = (np.zeros((*lead, 2), "float32"), np.zeros(lead) if n else 0, frame, *flags)
    value = np.zeros(lead)
    with pytest.raises(SchemaError, match="no episode is running"):
        writer.step(*step, value=value)
    with pytest.raises(SchemaError):
        writer.reset(frame["image"])
    with pytest.raises(SchemaError, match="not a field of episodes"):
        writer.reset(frame, tasks="a")
    writer.reset(frame, task="a")
    with pytest.raises(SchemaError, match="no step"):
        writer.episode(success=1)
    with pytest.raises(SchemaError, match="value"):
        writer.step(*step)
    with pytest.raises(SchemaError, match="expected"):
        writer.step(np.zeros((*lead, 3)), *step[1:], value=value)
    with pytest.raises(SchemaError):
        pickle.dumps(writer)
    writer.step(*step, value=value)
    writer.close()
    writer.close()
    with pytest.raises(ClosedError):
        writer.reset(frame)
    transport.receiver.close()
    with mmreplay.open(tmp_path / "x.zarr") as store:
        assert len(store) == (n or 1)
        assert store.episodes["task"].tolist() == ["a"] * (n or 1)


def test_closing_a_receiver_closes_lanes_that_no_sender_has_opened_again(tmp_path):
    transport = LossyTransport(tmp_path / "x.zarr", SMALL)
    with sender(transport, "actor", 3) as writer:
        make_calls(writer, script(1, 3, SMALL))
    transport.kill()
    transport.receiver.close()
    assert mmreplay.verify(tmp_path / "x.zarr").state == "closed"


@pytest.mark.parametrize("vector", [False, True])
def test_record_experience_takes_a_sending_writer(tmp_path, vector):
    stores = []
    for name in ("sent", "direct"):
        env = gymnasium.make_vec("CartPole-v1", 3) if vector else gymnasium.make("CartPole-v1")
        found = env_fields(env)
        fields = {"frame": found.frame, "action": found.action}
        path = tmp_path / f"{name}.zarr"
        if name == "sent":
            transport = LossyTransport(path, fields)
            writer = sender(transport, "actor", found.lanes)
        else:
            writer = mmreplay.create(path, lane="actor", lanes=found.lanes, **fields)
        recorded = mmreplay.RecordExperience(env, writer)
        recorded.reset(seed=3)
        recorded.action_space.seed(3)
        for _ in range(120):
            _, _, terminated, truncated, _ = recorded.step(recorded.action_space.sample())
            if not vector and (terminated or truncated):
                recorded.reset()
        recorded.close()
        writer.close()
        stores.append(path)
    transport.receiver.close()
    with mmreplay.open(stores[0]) as mine, mmreplay.open(stores[1]) as other:
        assert len(mine) > 100
        assert mine.ids.tolist() == other.ids.tolist()
        left, right = mine.transitions(mine.ids), other.transitions(other.ids)
        np.testing.assert_array_equal(left.observation, right.observation)
        np.testing.assert_array_equal(left.next_observation, right.next_observation)
        np.testing.assert_array_equal(left.action, right.action)
