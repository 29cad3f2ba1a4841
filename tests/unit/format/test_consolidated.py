"""The copy of all documents of a closed lane: how it is put together, and how it is read."""

import json

import numpy as np
import pytest

from mmreplay.errors import FormatError
from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec

ARRAYS = [
    (ArraySpec("rewards", (), np.dtype("float32"), 8), 5),
    (ArraySpec("extras/x", (2,), np.dtype("int8"), 8), 5),
    (layout.checksum_spec("extras/x"), 1),
]
BY_PATH = {spec.path: (spec, rows) for spec, rows in ARRAYS}


def document(**changes):
    data = layout.closed_json({"kind": "lane"}, layout.documents_of(BY_PATH))
    out = json.loads(data)
    out[layout.COPY].update(changes)
    return out


def test_every_array_and_group_is_in_it_as_in_its_own_file():
    copied = document()[layout.COPY]["metadata"]
    assert list(copied) == [
        "checksums",
        "extras",
        "rewards",
        "checksums/extras",
        "extras/x",
        "checksums/extras/x",
    ]
    for spec, rows in ARRAYS:
        assert copied[spec.path] == json.loads(layout.array_json(spec, rows))
    assert copied["checksums/extras"] == json.loads(layout.group_json())


def test_an_array_is_read_as_from_its_own_file():
    copy = parse.find_copy(document(), "s/zarr.json")
    found = [parse.array_spec(copy[spec.path], spec.path, "") for spec, _ in ARRAYS]
    assert found == ARRAYS
    assert parse.find_copy({layout.COPY: None}, "") is None


def test_what_is_no_copy_of_ours_is_refused():
    for changes, text in (
        ({"kind": "other"}, "kind: expected 'inline', found 'other'"),
        ({"must_understand": True}, "must_understand: expected False, found True"),
        ({"must_understand": 0}, "must_understand: expected False, found 0"),
        ({"metadata": []}, "expected metadata in it"),
    ):
        with pytest.raises(FormatError) as caught:
            parse.find_copy(document(**changes), "s/zarr.json")
        assert str(caught.value).startswith(f"s/zarr.json: consolidated_metadata: {text}")


def test_there_is_none_where_it_would_make_the_document_too_long():
    own = {"kind": "lane", "env": {"note": "x" * (layout.MAX_METADATA_BYTES - 500)}}
    data = layout.closed_json(own, layout.documents_of(BY_PATH))
    assert data == layout.group_json(own)
