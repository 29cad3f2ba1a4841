"""The columns of a store as the page knows them."""

from mmreplay import Field
from mmreplay.schema import Schema
from mmreplay.viewer.columns import FRAME_ROWS, shown_columns


def shown(frame, extras=None):
    return shown_columns(Schema.make(frame, Field((2,), "float32"), extras))


def test_columns_have_numbers_kinds_and_paths():
    columns = shown({"left": Field((4, 4)), "speed": Field((3,), "float64")}, {"x": Field(())})
    assert [(one.number, one.kind, one.name, one.path) for one in columns] == [
        (0, "frame", "left", "frames/left"),
        (1, "frame", "speed", "frames/speed"),
        (2, "action", "action", "actions"),
        (3, "reward", "reward", "rewards"),
        (4, "flag", "non_terminal", "non_terminals"),
        (5, "extra", "x", "extras/x"),
        (6, "priority", "priority", "priorities"),
    ]
    assert (columns[1].dtype, columns[1].shape) == ("float64", (3,))


def test_the_page_is_not_told_where_a_column_lies():
    about = shown(Field((4, 4)))[0].to_json()
    assert about.keys() == {"number", "kind", "name", "dtype", "shape", "block"}


def test_a_block_has_64_frames_or_as_many_as_4_mib_hold():
    blocks = {shape: shown(Field(shape))[0].block for shape in [(84, 84), (210, 160, 3)]}
    assert blocks == {(84, 84): FRAME_ROWS, (210, 160, 3): (4 << 20) // (210 * 160 * 3)}
    assert shown(Field((4096, 4096)))[0].block == 1
    assert shown(Field((17,), "float32"))[0].block == 4096
