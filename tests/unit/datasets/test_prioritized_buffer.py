"""The prioritized replay buffer: probabilities, weights, updates, and what survives."""

import json
import os
import shutil
import warnings

import numpy as np
import pytest
import zarr

import mmreplay
from mmreplay import PrioritizedReplayBuffer, ReplayBuffer
from mmreplay.errors import (
    ClosedError,
    DiskFullError,
    FormatError,
    InvalidIdError,
    SchemaError,
)
from tests.support.disks.faults import faulty_disk, kill
from tests.support.oracle.checks import check_verified
from tests.support.prioritized import ROWS, give, play, priorities_of

pytestmark = pytest.mark.usefixtures("quick_disk")


# ---------------------------------------------------------------- drawing


def test_the_same_seed_gives_the_same_batches_also_after_a_resume(prioritized_of):
    def run(buffer, n):
        out = []
        for _ in range(n):
            batch = buffer.sample(8)
            out += [batch.id.tolist(), batch.weight.tolist()]
            buffer.update_priorities(batch.id, np.cos(batch.id))
            play(buffer, 3)
        return out

    one, other = prioritized_of("a.zarr", seed=7), prioritized_of("b.zarr", seed=7)
    for buffer in (one, other):
        play(buffer, 1000)
    assert run(one, 5) == run(other, 5)
    one.close()
    one = prioritized_of("a.zarr")
    assert run(one, 5) == run(other, 5)
    one.flush()
    kill(one)
    one = prioritized_of("a.zarr", seed=1)
    assert run(one, 5) == run(other, 5)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_state_that_is_loaded_brings_back_the_batches_and_the_beta_of_then(
    prioritized_of, prefetch
):
    def run(buffer, n):
        return [(batch.id.tolist(), batch.weight.tolist()) for batch in map(buffer.sample, [8] * n)]

    given = {"beta": 0.25, "betasteps": 40, "prefetch": prefetch}
    buffer = prioritized_of("a.zarr", seed=7, **given)
    play(buffer, 100)
    buffer.update_priorities(buffer.ids, np.arange(len(buffer)))
    run(buffer, 10)
    state, beta = json.loads(json.dumps(buffer.state_dict())), buffer.beta
    expected = run(buffer, 10)
    buffer.flush()  # what is stored is the state of now
    kill(buffer)
    buffer = prioritized_of("a.zarr", **given)
    assert buffer.beta > beta == 0.25 + 0.75 * 10 / 40
    buffer.load_state_dict(state)
    assert buffer.beta == beta
    assert run(buffer, 10) == expected
    for wrong in (-1, 1.5, "1", True):
        bits = buffer.generator.bit_generator.state
        with pytest.raises(SchemaError, match="batches"):
            buffer.load_state_dict(state | {"batches": wrong})
        assert buffer.generator.bit_generator.state == bits
    with pytest.raises(SchemaError, match="state_dict"):
        buffer.load_state_dict(None)
    del state["batches"]  # of a uniform buffer
    beta = buffer.beta
    buffer.load_state_dict(state)
    assert buffer.beta == beta


# ---------------------------------------------------------------- updating


@pytest.mark.parametrize("wrong", [-1, 11, 1 << 40, (1 << 62) + 1, 1 << 30])
@pytest.mark.parametrize("many", [{}, {"lanes": 2}], ids=str)
def test_an_id_that_never_was_a_transition_is_refused_and_changes_nothing(
    prioritized_of, wrong, many
):
    buffer = prioritized_of(epsilon=0.0, **many)
    play(buffer, 5)
    play(buffer, 5)
    if "lanes" in many:
        one, frames = np.array([True, False]), np.zeros((2, 1), np.uint8)
        buffer.reset(frames, one)
        buffer.step([0, 0], [0, 0], frames, ~one, ~one, mask=one)  # entry 21 is left out
        wrong = {11: 21}.get(wrong, wrong)
    with pytest.raises(InvalidIdError, match=f"id {wrong} "):
        buffer.update_priorities([0, wrong, 1], [2.0, 2.0, 2.0])
    with pytest.raises(InvalidIdError, match=rf"id {wrong}\b"):
        buffer.priorities([0, wrong])
    assert (buffer.priorities(buffer.ids) == 1).all()
    play(buffer, 1)
    assert (buffer.priorities(buffer.ids) == 1).all()


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_errors_that_are_not_finite_are_refused_and_change_nothing(prioritized_of, wrong):
    buffer = prioritized_of(epsilon=0.0)
    play(buffer, 3)
    with pytest.raises(SchemaError, match=rf"finite numbers, found {wrong} at 1"):
        buffer.update_priorities([0, 1, 2], [2.0, wrong, 2.0])
    assert (buffer.priorities(buffer.ids) == 1).all()


# ---------------------------------------------------------------- what survives


@pytest.mark.parametrize("end", ["close", "kill", "flush and kill"])
@pytest.mark.parametrize("many", [{}, {"lanes": 3}], ids=str)
def test_priorities_survive(prioritized_of, end, many):
    buffer = prioritized_of(capacity=ROWS, **many)
    random = np.random.default_rng(0)
    for _ in range(3 if many else 5):
        play(buffer, ROWS // (3 if many else 2) + 7)
        given = give(buffer, random.random(len(buffer)) + 0.1)
        if end != "kill":
            buffer.flush()
    largest = buffer.sampler.largest
    if end == "close":
        buffer.close()
    elif end == "flush and kill":
        buffer.flush()
    kill(buffer)
    check_verified(buffer.store.path)
    buffer = prioritized_of()
    assert priorities_of(buffer) == given
    if end != "kill":
        assert buffer.sampler.largest == largest
    assert set(buffer.sample(2000).id.tolist()) <= set(given)


def test_a_smaller_capacity_at_reopening_evicts_priorities_too(prioritized_of):
    buffer = prioritized_of()
    play(buffer, 4 * ROWS)
    given = give(buffer, np.random.default_rng(0).random(4 * ROWS) + 0.1)
    buffer.close()
    buffer = prioritized_of(capacity=100)
    assert len(buffer) == 100
    found = priorities_of(buffer)
    assert found == {i: given[i] for i in found}
    buffer.update_priorities([0], [1.0])
    assert buffer.n_late_updates == 1
    for what in (buffer.priorities, buffer.probabilities):
        with pytest.raises(
            InvalidIdError, match=r"id 0 \(lane 0, row 0\) was evicted: the oldest row"
        ):
            what([buffer.ids[0], 0])
    play(buffer, 1)
    buffer.close()
    names = sorted(path.name for path in (buffer.store.path / "priorities").iterdir())
    assert names in (["c.3", "c.4", "zarr.json"], ["c.3", "zarr.json"])
    check_verified(buffer.store.path)
    buffer = prioritized_of(capacity=10_000)
    found = priorities_of(buffer)
    del found[max(found)]
    assert found == {i: given[i] for i in found}


def test_a_store_that_was_written_without_priorities_gets_them(prioritized_of):
    plain = prioritized_of(kind=ReplayBuffer)
    play(plain, 40)
    plain.close()
    assert not (plain.store.path / "priorities").exists()
    buffer = prioritized_of()
    assert priorities_of(buffer) == dict.fromkeys(range(40), 1.0)
    buffer.sample(4)
    buffer.close()
    check_verified(plain.store.path)


def test_a_power_cut_leaves_no_priority_on_rows_past_the_head(prioritized_of):
    for kind in (PrioritizedReplayBuffer, ReplayBuffer):
        name = f"{kind.__name__}.zarr"
        buffer = prioritized_of(name)
        play(buffer, 300)
        give(buffer, np.full(300, 7.0))
        buffer.flush()
        play(buffer, 3 * ROWS)
        lost = buffer.ids >= 300
        give(buffer, np.where(lost, 4.0, 9.0))
        kill(buffer)
        # Another start of the system: the state is not trusted, and the head goes back.
        state = buffer.store.path / ".live" / "state"
        data = bytearray(state.read_bytes())
        words = np.frombuffer(data, np.uint64)
        words[7] ^= 1  # any difference in the boot id, which is stored last, will do
        state.write_bytes(data)
        buffer = prioritized_of(name, kind)
        assert len(buffer) == 300
        play(buffer, 2 * ROWS)
        kill(buffer)
        buffer = prioritized_of(name)
        found = priorities_of(buffer)
        assert len(found) == 300 + 2 * ROWS
        assert set(found.values()) == {9.0}
        assert buffer.sampler.largest == 9.0


def test_a_closed_store_is_plain_zarr(prioritized_of):
    import tensorstore

    buffer = prioritized_of(capacity=ROWS)
    play(buffer, 100)
    play(buffer, ROWS + 7)
    buffer.flush()
    given = give(buffer, np.random.default_rng(0).random(len(buffer)) + 0.1)
    head = buffer.store.live.rows(0)
    buffer.close()
    expected = np.zeros(head)
    expected[list(given)] = list(given.values())
    path = buffer.store.path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        group = zarr.open_group(path, mode="r", zarr_format=3, use_consolidated=False)
        array = group["priorities"]
        assert dict(group.members(max_depth=None)).keys() >= {"priorities"}
        assert array[:].tolist() == expected.tolist()
    kvstore = {"driver": "file", "path": str(path / "priorities")}
    theirs = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
    assert theirs.read().result().tolist() == expected.tolist()


# ---------------------------------------------------------------- what goes wrong


def test_verify_finds_damaged_priorities(prioritized_of):
    buffer = prioritized_of()
    play(buffer, ROWS + 100)
    buffer.sample(4)
    buffer.close()
    path = buffer.store.path
    chunk = path / "priorities/c.0"
    good = chunk.read_bytes()

    def finding():
        (found,) = mmreplay.verify(path).findings
        return found.file, found.message

    for value in (np.nan, -1.0, np.inf):
        data = np.frombuffer(good).copy()
        data[17] = value
        chunk.write_bytes(data.tobytes())
        where, message = finding()
        assert where == "priorities/c.0"
        assert message.startswith("checksum: expected crc32c")
        buffer = prioritized_of()  # the damaged one is replaced
        assert buffer.priorities([17]).tolist() == [1.0]
        buffer.close()
        assert mmreplay.verify(path).findings == []
    chunk.unlink()
    assert finding() == ("priorities/c.0", "expected this chunk file, found none")
    chunk.write_bytes(good)
    (path / "priorities").rename(path.with_name("away"))
    assert finding()[0] == "priorities/zarr.json"
    prioritized_of(kind=ReplayBuffer).close()  # without priorities from here on
    assert mmreplay.verify(path).findings == []


def test_a_draw_without_replacement_or_in_groups_is_refused(prioritized_of):
    buffer = prioritized_of()
    for given in ({"replace": False}, {"group": 2}):
        with pytest.raises(SchemaError, match=f"{next(iter(given))}: expected"):
            buffer.sample(2, **given)


def test_damaged_priorities_are_refused_and_cost_no_row(prioritized_of):
    buffer = prioritized_of()
    play(buffer, 100)
    give(buffer, np.arange(1.0, 101))
    buffer.close()
    where = buffer.store.path / "priorities" / "zarr.json"
    where.write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
    with pytest.raises(FormatError, match="priorities"):
        prioritized_of()
    for end in ("kill", "close"):
        plain = prioritized_of(kind=ReplayBuffer)
        play(plain, 10)
        plain.flush()
        if end == "close":
            plain.close()
        kill(plain)
    assert len(mmreplay.open(plain.store.path)) == 120
    where.unlink()
    with pytest.raises(FormatError, match=r"delete .* to start with new priorities"):
        prioritized_of()
    shutil.rmtree(where.parent)
    assert set(priorities_of(prioritized_of()).values()) == {100.0}


def test_no_room_for_priorities_is_a_clear_error_and_costs_nothing(prioritized_of):
    buffer = prioritized_of(epsilon=0.0)
    play(buffer, ROWS - 50)
    given = dict.fromkeys(buffer.ids.tolist(), 3.0)
    buffer.update_priorities(buffer.ids, np.full(ROWS - 50, 3.0))
    play(buffer, 200)
    with faulty_disk() as disk:
        disk.fail({"posix_fallocate"}, 28, forever=True)
        for call in (
            lambda: buffer.sample(8),
            lambda: buffer.update_priorities([0], [5.0]),
            lambda: buffer.priorities([0]),
        ):
            with pytest.raises(DiskFullError, match="priorities"):
                call()
        assert len(buffer) == ROWS + 150
    assert 0 in buffer.ids
    buffer.update_priorities([0], [5.0])
    found = priorities_of(buffer)
    assert found == {i: given.get(i, 3.0) for i in found} | {0: 5.0}
    drawn = np.concatenate([buffer.sample(1000).id for _ in range(10)])
    assert np.isin(buffer.ids[-50:], drawn).all()
    buffer.close()
    check_verified(buffer.store.path)


@pytest.mark.parametrize("at", [3, 8])  # the first ones are tried again by the call itself
def test_a_full_disk_at_closing_keeps_everything_and_the_next_close_is_whole(prioritized_of, at):
    buffer = prioritized_of()
    play(buffer, 100)
    given = give(buffer, np.arange(1.0, 101))
    with faulty_disk() as disk:
        disk.fail({"write"}, 28, at=at)
        with pytest.raises(DiskFullError):
            buffer.close()
    buffer.close()
    check_verified(buffer.store.path)
    assert zarr.open_array(buffer.store.path / "priorities", mode="r").shape == (100,)
    assert priorities_of(prioritized_of()) == given


def test_a_forked_child_is_refused_and_changes_nothing(prioritized_of):
    buffer = prioritized_of()
    play(buffer, 10)
    given = give(buffer, np.arange(1.0, 11))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            refused = 0
            for call in (
                lambda: buffer.sample(2),
                lambda: buffer.update_priorities([0], [9.0]),
                lambda: buffer.priorities([0]),
                lambda: buffer.sampler,
                lambda: buffer.n_late_updates,
            ):
                try:
                    call()
                except ClosedError as error:
                    refused += "parent of this process" in str(error)
            buffer.close()
            code = 0 if refused == 5 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert priorities_of(buffer) == given
    play(buffer, 1)
    buffer.sample(3)
