"""Epochs: each transition once, each chunk decoded about once, and going on where one was left."""

import itertools
import json
import shutil

import numpy as np
import pytest

import mmreplay
from mmreplay.errors import SchemaError
from mmreplay.reading.live_lanes import LiveLanes
from mmreplay.storage.shard_column import ShardColumn
from tests.support import epoch_stores
from tests.support.effort import by_effort

pytestmark = pytest.mark.usefixtures("quick_disk")

SMALL = {"shuffle_rows": 512}
COMPRESSED = [
    kind for kind in epoch_stores.KINDS if kind != "vectors" and not kind.startswith("raw")
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Load the stores of a kind, made once: `stores(kind, **settings)`."""
    made = {}

    def load(kind, **settings):
        if kind not in made:
            folder = tmp_path_factory.mktemp("epochs")
            made[kind] = epoch_stores.record(folder, kind, by_effort(1200, 6000, 20_000))
        return mmreplay.load(made[kind], **settings)

    return load


@pytest.fixture
def decoded(monkeypatch):
    """The keys of the chunks that are decoded, whole or only their starts."""
    out, real = [], ShardColumn._decode_chunk

    def decode(column, key, *where):
        is_decoded = real(column, key, *where)
        out.extend([key] * is_decoded)
        return is_decoded

    monkeypatch.setattr(ShardColumn, "_decode_chunk", decode)
    return out


def ids_of(batches):
    return [batch.id.tolist() for batch in batches]


def flat(batches):
    return [one for ids in ids_of(batches) for one in ids]


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        *((kind, SMALL) for kind in epoch_stores.KINDS),
        ("two lanes", {"shuffle": False}),
        ("many environments", {"shuffle": "full"}),
    ],
    ids=str,
)
def test_batches_are_what_the_store_gives_for_their_ids(stores, same, kind, given):
    with stores(kind, n_step=2) as data:
        seen = []
        for number, batch in enumerate(data.batches(100, **given)):
            seen.append(batch.id)
            if number % 9 == 0:
                assert same(batch, data.transitions(batch.id))
        assert np.array_equal(np.sort(np.concatenate(seen)), data.ids)


@pytest.mark.parametrize("kind", COMPRESSED)
@pytest.mark.parametrize("given", [SMALL, {}, {"shuffle": False}], ids=str)
def test_an_epoch_decodes_each_chunk_about_once(stores, decoded, kind, given):
    with stores(kind) as data:
        assert len(flat(data.batches(64, **given))) == len(data)
        assert len(decoded) <= 1.3 * epoch_stores.n_chunks(data)


@pytest.mark.parametrize("stride", [1, 7])
@pytest.mark.parametrize("kind", ["one lane", "many environments"])
def test_epochs_of_windows_decode_each_chunk_about_once(stores, decoded, same, kind, stride):
    with stores(kind) as data:
        batches = list(data.sequence_batches(16, 30, 10, stride=stride, shuffle_rows=1024))
        assert len(decoded) <= 1.3 * epoch_stores.n_chunks(data)
        found = [one for batch in batches for one in batch.id[:, 10].tolist()]
        every = data.sequence_batches(1000, 30, 10, stride=stride, shuffle=False)
        assert sorted(found) == [one for batch in every for one in batch.id[:, 10].tolist()]


@pytest.mark.parametrize("offsets", [0, (-40, 0), range(40)], ids=str)
@pytest.mark.parametrize("kind", ["one lane", "many environments"])
def test_epochs_of_columns_decode_each_chunk_about_once(stores, decoded, kind, offsets):
    with stores(kind) as data:
        given = {"observation": offsets, "action": range(-60, 60)}
        batches = list(data.window_batches(16, given, shuffle_rows=1024))
        assert len(decoded) <= 1.3 * epoch_stores.n_chunks(data)
        assert sorted(flat(batches)) == data.ids.tolist()
        # The further observations reach, the longer are the blocks; other columns do not count.
        orders = [
            flat(data.window_batches(16, {"observation": 0, **more}, epoch=0, shuffle_rows=1024))
            for more in ({}, {"action": -200}, {"observation": (0, 200)})
        ]
        assert orders[0] == orders[1] != orders[2]


# ---------------------------------------------------------------- groups


def test_a_group_decodes_its_chunk_once(stores, decoded):
    with stores("one lane") as data:
        batch = data.sample(64, group=8)
        groups = batch.id.reshape(8, 8)
        assert (groups // 16 == groups[:, :1] // 16).all()
        assert all(len(set(ids)) == 8 for ids in groups.tolist())
        assert len(decoded) <= 3 * 8
        decoded.clear()
        data.sample(64)
        assert len(decoded) > 3 * 8


# ---------------------------------------------------------------- going on


def begun(data, n_batches, **given):
    """The ids of so many batches, and the state after them, as a file would have it."""
    some = ids_of(itertools.islice(data.batches(64, **given), n_batches))
    return some, json.loads(json.dumps(data.state_dict()))


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("one lane", SMALL),
        ("many environments", {}),
        ("one lane", {"shuffle": False}),
        ("many environments", {"shuffle": "full"}),
    ],
    ids=str,
)
def test_an_epoch_goes_on_where_it_was_left(stores, kind, given):
    with stores(kind, seed=3) as data, stores(kind, seed=3) as twin:
        flat(data.batches(64, **given))
        flat(twin.batches(64, **given))
        whole = ids_of(twin.batches(64, epochs=2, **given))
        some, state = begun(data, 9, epochs=2, **given)
        assert len(json.dumps(state)) < 1000
    with stores(kind, seed=99) as again:
        again.load_state_dict(state)
        assert some + ids_of(again.batches(64, epochs=2, **given)) == whole
        with stores(kind, seed=3) as twin:
            third = ids_of(twin.batches(64, epoch=3, **given))
        assert ids_of(again.batches(64, **given)) == third


@pytest.mark.parametrize("n_batches", [0, 1, 19, 20, 38, 47, 57, 58])
@pytest.mark.parametrize("used", [0, 5])
def test_epochs_of_a_call_that_goes_on_are_counted_from_its_beginning(stores, n_batches, used):
    given = {"epochs": 3, **SMALL}
    with stores("one lane", seed=3) as data, stores("one lane", seed=8) as again:
        for _ in data.batches(999, epochs=used):
            pass
        size = len(data) // 19 + 1  # 19 batches an epoch
        batches = data.batches(size, **given)
        some = [next(batches, None) for _ in range(n_batches)]
        again.load_state_dict(json.loads(json.dumps(data.state_dict())))
        rest = ids_of(batches)
        assert (len(some) + len(rest), some[-1:] != [None]) == (max(57, n_batches), n_batches < 58)
        if n_batches < 58:
            assert ids_of(again.batches(size, **given)) == rest
        follows = ids_of(data.batches(size, **given))
        assert ids_of(again.batches(size, **given)) == follows
        assert len(follows) == 57


def test_an_interrupt_between_two_epochs_loses_none(stores, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with stores("one lane", seed=3) as data, stores("one lane") as again:
        batches = data.batches(len(data) // 4, epochs=3)
        list(itertools.islice(batches, 4))
        monkeypatch.setattr(LiveLanes, "gather", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        monkeypatch.undo()
        again.load_state_dict(json.loads(json.dumps(data.state_dict())))
        rest = ids_of(again.batches(len(data) // 4, epochs=3))
        assert len(rest) == 8
        assert rest[:4] == ids_of(data.batches(len(data) // 4, epoch=1))


def test_fewer_epochs_than_a_call_had_completed_are_refused(stores):
    with stores("one lane", seed=3) as data, stores("one lane") as again:
        some = ids_of(itertools.islice(data.batches(len(data) // 4, epochs=3), 9))
        again.load_state_dict(data.state_dict())
        for epochs in (1, 2):
            with pytest.raises(SchemaError, match=r"epochs: .* than the 2 that .*, found .*epoch="):
                again.batches(64, epochs=epochs)
        assert not ids_of(again.batches(64, epochs=0))
        rest = ids_of(again.batches(len(data) // 4, epoch=2))  # names the epoch: that one alone
        assert sorted(flat(data.batches(64, epoch=2))) == sorted(
            [*some[8], *itertools.chain(*rest)]
        )


def test_an_epoch_of_windows_goes_on(stores):
    given = {"length": 20, "burn_in": 4, "stride": 3, **SMALL}
    with stores("many environments", seed=3) as data, stores("many environments") as again:
        whole = ids_of(data.sequence_batches(8, epoch=0, **given))
        some = ids_of(itertools.islice(data.sequence_batches(8, epoch=0, **given), 7))
        again.load_state_dict(json.loads(json.dumps(data.state_dict())))
        assert some + ids_of(again.sequence_batches(8, **given)) == whole


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"shuffle": "full"}, "shuffle: expected True, as when the loaded state .*, found 'full'"),
        ({"shuffle_rows": 1024}, "shuffle_rows: expected 512, .*, found 1024"),
        ({"world_size": 2}, "world_size: expected 1, .*, found 2"),
    ],
)
def test_what_the_order_depends_on_may_not_change_within_an_epoch(stores, changes, match):
    with stores("one lane", seed=3) as data, stores("one lane", seed=3) as again:
        _, state = begun(data, 3, **SMALL)
        again.load_state_dict(state)
        with pytest.raises(SchemaError, match=match):
            again.batches(64, **{**SMALL, **changes})
        with pytest.raises(SchemaError, match=r"windows: expected None, .*, found"):
            again.sequence_batches(64, 2, **SMALL)
        assert len(flat(again.batches(10, **SMALL))) == len(again) - 3 * 64  # other sizes may
    with stores("one lane", stack=2) as again:
        again.load_state_dict(state)
        with pytest.raises(SchemaError, match=r"stack: expected 4, .*, found 2"):
            again.batches(64, **SMALL)


def test_an_epoch_goes_on_after_rows_have_come_but_not_after_some_have_gone(make, story):
    writer = make(capacity=40)
    story.play(writer, 20, "terminated")
    story.play(writer, 10)
    with mmreplay.load(writer.path) as data:
        some = flat(itertools.islice(data.batches(8), 2))
        whole, state = flat(data.batches(8, epoch=0)), None
        assert some == whole[:16]
        next(data.batches(16, epoch=0))
        state = data.state_dict()
    story.play(writer, 5, reset=False)
    with mmreplay.load(writer.path, seed=9) as again:
        again.load_state_dict(state)
        assert flat(again.batches(8)) == whole[16:]
        assert len(flat(again.batches(8))) == 35
    story.play(writer, 20, reset=False)
    with mmreplay.load(writer.path) as again:
        again.load_state_dict(state)
        for _ in range(2):
            with pytest.raises(SchemaError, match=r"expected the 30 transitions .* found 15 of"):
                next(again.batches(8))
        assert len(flat(again.batches(8, epoch=1))) == 40


def test_an_epoch_of_windows_does_not_go_on_after_rows_have_come(make, story):
    writer = make()
    story.play(writer, 40)
    given = {"length": 4, "boundary": "pad", "stride": 4}
    with mmreplay.load(writer.path) as data:
        next(data.sequence_batches(2, **given))
        state = data.state_dict()
    story.play(writer, 20, reset=False)
    with mmreplay.load(writer.path) as again:
        again.load_state_dict(state)
        with pytest.raises(SchemaError, match="only while the store does not"):
            next(again.sequence_batches(2, **given))


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        None,
        [1],
        {"generator": 3},
        {"seed": -1},
        {"epoch": "a"},
        {"done": None},
        {"position": 1.5},
        {"order": 7},
        {"order": None},
        {"order": {"lanes": [[0, 9]]}},
        {"order": {"lanes": [[0, -1]], "size": 4}},
        {"order": {"lanes": [[1]]}},
        {"order": {"lanes": [[0, 9]], "size": 9, "uuids": 7}},
        {"generator": np.random.MT19937(0).state},
    ],
    ids=str,
)
def test_what_is_no_state_is_refused_and_changes_nothing(stores, wrong):
    with stores("one lane", seed=3) as data, stores("one lane", seed=3) as twin:
        begun(twin, 1)
        state = twin.state_dict() | wrong if isinstance(wrong, dict) and wrong else wrong
        with pytest.raises(SchemaError, match=r"state: |seed: |epoch: |position: |done: |lanes: "):
            data.load_state_dict(state)
        with stores("one lane", seed=3) as other:
            assert data.sample(9).id.tolist() == other.sample(9).id.tolist()
            assert ids_of(data.batches(64)) == ids_of(other.batches(64))


# ---------------------------------------------------------------- another store at the path


def recorded(path, n_episodes=6, base=0):
    """The path of a store of episodes of four steps."""
    with mmreplay.create(path, mmreplay.Field((1,), "int64"), mmreplay.Field((), "int64")) as one:
        for number in range(n_episodes):
            one.reset(np.array([base + number]))
            for step in range(4):
                one.step(base + number, 0.0, np.array([base + number]), terminated=step == 3)
    return path


def replace(path, how):
    """Put another store of the same length, or one of its episodes, where one is."""
    aside = path.rename(path.with_name("aside.zarr"))
    if how == "pack":
        mmreplay.pack(aside, path, episodes=range(1, 6))
    else:
        recorded(path, base=1000)


@pytest.mark.parametrize(("how", "prefetch"), [("pack", 0), ("create", 2)])
@pytest.mark.parametrize(
    "epoch_of",
    [
        lambda data: data.batches(2),
        lambda data: data.sequence_batches(2, 2),
        lambda data: data.select(ids=data.ids).batches(2, shuffle=False),
        lambda data: mmreplay.Decorated(data, lambda batch, _: batch).batches(2, shuffle="full"),
    ],
)
def test_an_epoch_does_not_go_on_over_another_store(tmp_path, epoch_of, how, prefetch):
    path = recorded(tmp_path / "store.zarr")
    with mmreplay.load(path, stack=None, seed=1, prefetch=prefetch) as data:
        batches = epoch_of(data)
        next(batches)
        replace(path, how)
        data.refresh()
        with pytest.raises(SchemaError, match=r"store\.zarr: .*this epoch .*another .*begin a new"):
            next(batches)
        assert sorted(flat(data.batches(5))) == data.ids.tolist()


def test_an_epoch_does_not_go_on_from_a_state_of_another_store(tmp_path):
    path = recorded(tmp_path / "store.zarr")
    with mmreplay.load(path, seed=1) as data:
        _, state = begun(data, 0)
        with mmreplay.load(path) as again:
            again.load_state_dict(state)  # of no store, as no batch was given
        next(data.batches(2))
        state = json.loads(json.dumps(data.state_dict()))
    replace(path, "create")
    with mmreplay.load(path) as again:
        again.load_state_dict(state)
        with pytest.raises(SchemaError, match=r"store\.zarr: .*loaded state.*another .*epoch="):
            next(again.batches(2))
        again.load_state_dict(state)
        assert sorted(flat(again.batches(2, epoch=7))) == again.ids.tolist()


@pytest.mark.parametrize("what", ["moved", "copied", "grown", "a lane more"])
def test_an_epoch_goes_on_from_a_state_of_the_same_store(tmp_path, what):
    path, fields = tmp_path / "store.zarr", (mmreplay.Field((1,)), mmreplay.Field((), "int64"))
    frame, lane = np.zeros(1, np.uint8), "a" if what == "a lane more" else None

    def play(**given):
        with mmreplay.create(path, *fields, append=True, **given) as writer:
            writer.reset(frame)
            for number in range(9):
                writer.step(number, 0.0, frame)

    play(lane=lane)
    with mmreplay.load(path, seed=1) as data:
        batches = data.batches(2)
        next(batches)
        state = json.loads(json.dumps(data.state_dict()))
        rest = ids_of(batches)
    if what == "moved":
        path = path.rename(tmp_path / "moved.zarr")
    elif what == "copied":
        path = shutil.copytree(path, tmp_path / "copy.zarr")
    else:
        play(lane=lane and "b")
    with mmreplay.load(path) as again:
        again.load_state_dict(state)
        assert ids_of(again.batches(2)) == rest


def test_an_interrupted_first_batch_leaves_the_loaded_position(tmp_path, monkeypatch):
    path = recorded(tmp_path / "store.zarr")
    with mmreplay.load(path, seed=1) as data:
        batches = data.batches(2)
        next(batches)
        state = data.state_dict()
        rest = ids_of(batches)
        data.load_state_dict(state)
        gather = LiveLanes.gather

        def interrupted(*given):
            monkeypatch.setattr(LiveLanes, "gather", gather)
            raise KeyboardInterrupt

        monkeypatch.setattr(LiveLanes, "gather", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(data.batches(2))
        assert ids_of(data.batches(2)) == rest


def test_iterators_side_by_side_take_an_epoch_each_and_the_next_call_another(tmp_path):
    with mmreplay.load(recorded(tmp_path / "store.zarr"), seed=1) as data:
        orders = [flat(data.batches(8, epoch=number)) for number in range(3)]
        data.load_state_dict({**data.state_dict(), "epoch": 0, "position": 0})
        side = [list(pair) for pair in zip(data.batches(8), data.batches(8), strict=True)]
        for number in (0, 1):
            assert flat(pair[number] for pair in side) == orders[number]
        assert flat(data.batches(8)) == orders[2]


def test_an_older_iterator_does_not_take_the_loaded_position(tmp_path):
    with mmreplay.load(recorded(tmp_path / "store.zarr"), seed=1) as data:
        batches = data.batches(2)
        next(batches)
        state = data.state_dict()
        rest = ids_of(data.batches(2, epoch=0))[1:]
        data.load_state_dict(state)
        next(batches)
        assert ids_of(data.batches(2)) == rest
