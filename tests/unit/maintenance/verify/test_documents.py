"""Documents that can be read, and differ from docs/format.md."""

import json

import numpy as np
import pytest

import mmreplay
from mmreplay import verify
from tests.support.documents import drop_copy
from tests.support.tampering.findings import messages
from tests.support.tampering.forgery import edit


@pytest.mark.parametrize(
    ("file", "change", "text"),
    [
        ("rewards", {"shape": [36]}, "shape[0]: expected 33, found 36"),
        (
            "rewards",
            {"data_type": "int32"},
            "expected rows of () float32, as the schema says; found",
        ),
        ("checksums/rewards", {"shape": [4]}, "shape[0]: expected 5, found 4"),
        ("extras", {"consolidated_metadata": {}}, "consolidated_metadata: unknown to format 1"),
        ("finals", {"node_type": "array"}, "node_type: expected 'group', found 'array'"),
        ("step", {"dimension_names": ["row"]}, "dimension_names[0]: expected 'step', found 'row'"),
        ("finals/id", {"shape": [5]}, "shape[0]: expected 3, found 5"),
    ],
)
def test_a_document_with_another_value(lz4_store, file, change, text):
    edit(lz4_store / file / "zarr.json", lambda document: document.update(change))
    (found,) = messages(lz4_store, f"{file}/zarr.json")
    assert found.startswith(text)


def test_a_users_own_attributes_are_welcome(lz4_store):
    edit(
        lz4_store / "rewards" / "zarr.json",
        lambda d: d.update(attributes={"unit": "points"}),
    )
    edit(lz4_store / "zarr.json", lambda d: d["attributes"].update(title="mine"))
    assert verify(lz4_store).sound


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda own: own.update(generator={"a": 1}), "generator: expected a random state as text"),
        (lambda own: own.update(generator="{}"), "generator: expected a random state as text"),
        (lambda own: own.update(env=[]), "env: expected dict, found []"),
        (lambda own: own["schema"].update(more=1), "schema: expected "),
    ],
)
def test_attributes_with_another_value(lz4_store, change, text):
    edit(lz4_store / "zarr.json", lambda document: change(document["attributes"]["mmreplay"]))
    assert any(one.startswith(text) for one in messages(lz4_store, "zarr.json"))


def test_attributes_are_compared_with_their_checksum(lz4_store):
    file = lz4_store / "zarr.json"
    sound = file.read_text()
    changed = sound.replace('"env": {}', '"env": {"id": "mine"}')
    assert changed != sound
    file.write_text(changed)
    (text,) = messages(lz4_store, "zarr.json")
    assert text.startswith("attributes.mmreplay: expected crc32c '")
    document = json.loads(sound)
    del document["attributes"]["mmreplay"]["crc32c"]
    file.write_text(json.dumps(document))
    (text,) = messages(lz4_store, "zarr.json")
    assert text.startswith("attributes.mmreplay: expected crc32c None")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda m: m.pop("rewards"), "rewards: missing"),
        (lambda m: m.update(other=m["rewards"]), "other: unknown to format 1"),
        (lambda m: m["rewards"].update(shape=[36]), "rewards.shape[0]: expected 33, found 36"),
        (lambda m: m.update(extras=3), "extras: expected {"),
        (lambda m: m["extras"].update(more=1), "extras.more: unknown to format 1"),
    ],
)
def test_a_copy_that_differs_from_the_documents_themselves(lz4_store, change, text):
    edit(lz4_store / "zarr.json", lambda d: change(d["consolidated_metadata"]["metadata"]))
    found = messages(lz4_store, "zarr.json")
    assert found[0].startswith(f"consolidated_metadata.{text}")


def test_a_closed_lane_needs_no_copy(lz4_store):
    drop_copy(lz4_store)
    assert verify(lz4_store).sound


@pytest.mark.parametrize(
    ("file", "sound", "damaged", "text"),
    [
        ("zarr.json", "low_prob", "loe_prob", "attributes.mmreplay: expected crc32c"),
        ("priorities/zarr.json", '"step"', '"ster"', "dimension_names[0]: expected 'step'"),
    ],
)
def test_a_damaged_name_is_found_in_its_own_file(tmp_path, file, sound, damaged, text):
    """Not only where an array of that name is missing, or in the copy that differs."""
    path = tmp_path / "a.zarr"
    frame, action = mmreplay.Field((3,), "float32"), mmreplay.Field((), "int64")
    extras = {"low_prob": mmreplay.Field((), "float32")}
    given = {"frame": frame, "action": action, "extras": extras}
    with mmreplay.PrioritizedReplayBuffer(path, capacity=9, **given) as buffer:
        buffer.reset(np.zeros(3, "f4"))
        buffer.step(0, 1.0, np.zeros(3, "f4"), terminated=True, low_prob=0.5)
        buffer.update_priorities([0], [1.0])
    document = (path / file).read_text()
    (path / file).write_text(document.replace(sound, damaged, 1))
    found = [one.message for one in verify(path).findings if one.file == file]
    assert any(one.startswith(text) for one in found)
