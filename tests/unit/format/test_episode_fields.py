"""What may be declared of episodes, and the texts that a store keeps."""

import numpy as np
import pytest

from mmreplay import Field, Text
from mmreplay.errors import SchemaError
from mmreplay.format.episode_fields import episode_fields, field_name
from mmreplay.texts import decoded

TEXT = Text(4)


@pytest.mark.parametrize(
    ("text", "stored"), [("", "\0\0\0\0"), ("abcd", "abcd"), ("ä", "ä\0\0"), (b"ab", "ab\0\0")]
)
def test_a_text_is_stored_as_utf_8_with_zeros_after_it(text, stored):
    row = TEXT.coerce_loosely(text, "task")
    assert (row.dtype, row.shape) == (np.dtype("uint8"), (4,))
    assert row.tobytes() == stored.encode()
    assert decoded(row[None]).tolist() == [text if isinstance(text, str) else text.decode()]


@pytest.mark.parametrize("value", ["abcde", "äää", "a\0b", "\ud800", 3, None, ["a"]])
def test_other_texts_are_refused(value):
    with pytest.raises(SchemaError, match="task"):
        TEXT.coerce_loosely(value, "task")


@pytest.mark.parametrize("width", [0, -1, 65_537, 1.5, True, "8"])
def test_a_width_is_a_number_of_bytes(width):
    with pytest.raises(SchemaError, match="Text"):
        Text(width)


def test_half_of_two_texts_is_still_a_text():
    assert decoded(np.array([[0xC3, 0x61, 0, 0x62]], np.uint8)).tolist() == [
        "\N{REPLACEMENT CHARACTER}a"
    ]


@pytest.mark.parametrize(
    "given",
    [
        *(
            {name: TEXT}
            for name in ("id", "return", "env", "started", "mask", "frame", "zarr.json")
        ),
        *({name: TEXT} for name in ("", "a/b", ".a", "1", "ä", "x" * 101, "x.tmp", 3)),
        {"x": Field((), "int8", codec="lz4")},
        {"x": Field((), "int8", fill=1)},
        {"x": Field((65_537,), "int8")},
        {"x": "int8"},
        [("x", TEXT)],
    ],
)
def test_what_cannot_be_a_field_of_episodes(given):
    with pytest.raises(SchemaError, match="episode"):
        episode_fields(given)


@pytest.mark.parametrize(
    ("foreign", "name"),
    [("seed", "seed"), ("options/x", "options.x"), ("id", "id_"), ("3 d", "_3_d"), ("", "_")],
)
def test_foreign_names_become_fields(foreign, name):
    assert field_name(foreign) == name
    assert episode_fields({field_name(foreign): TEXT})
