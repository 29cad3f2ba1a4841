"""Records of TensorFlow: their bytes as documented; see tests/exchange for those it wrote."""

import struct

import numpy as np
import pytest

from mmreplay import FormatError
from mmreplay.exchange.rlds import Example, records

# Written by tf.io.TFRecordWriter: two records, of one tf.train.Example and of b"".
WRITTEN = bytes.fromhex(
    "410000000000000000a9c2ab0a3f0a110a0178120c120a0a080000003f000000c00a1a0a016e1215"
    "1a130a1101fdffffffffffffffff018080808080200a0e0a016212090a070a036f6e650a003373c8"
    "9e000000000000000029039807d8ea82a2"
)


def test_records_that_tensorflow_wrote(tmp_path):
    (tmp_path / "a").write_bytes(WRITTEN)
    found = list(records(tmp_path / "a", "tfrecord"))
    assert len(found) == 2
    assert found[1] == b""
    example = Example(found[0], "a")
    assert example.numbers("x", np.dtype("float32")).tolist() == [0.5, -2.0]
    assert example.numbers("n", np.dtype("int64")).tolist() == [1, -3, 1 << 40]
    assert example.numbers("n", np.dtype("uint64"))[1] == (1 << 64) - 3
    assert list(example.values("b", is_bytes=True)) == [b"one", b""]


def test_every_byte_that_changes_is_noticed(tmp_path):
    for place in range(len(WRITTEN)):
        changed = bytearray(WRITTEN)
        changed[place] ^= 1
        (tmp_path / "a").write_bytes(changed)
        with pytest.raises(FormatError, match=r"a: the record at byte \d+: "):
            list(records(tmp_path / "a", "tfrecord"))


def test_every_end_within_a_record_is_noticed(tmp_path):
    second = len(WRITTEN) - 16
    for size in range(len(WRITTEN)):
        (tmp_path / "a").write_bytes(WRITTEN[:size])
        if size in {0, second}:
            assert len(list(records(tmp_path / "a", "tfrecord"))) == (size > 0)
        else:
            with pytest.raises(FormatError, match="the file ends within it"):
                list(records(tmp_path / "a", "tfrecord"))


def test_other_files_and_other_messages_are_refused(tmp_path):
    with pytest.raises(FormatError, match="expected files of tfrecord or array_record, found 'x'"):
        list(records(tmp_path / "a", "x"))
    with pytest.raises(FormatError, match=r"a: not a tf\.train\.Example"):
        Example(b"\xff\xff", "a")
    length = struct.unpack_from("<Q", WRITTEN)[0]
    example = Example(WRITTEN[12 : 12 + length], "a")
    with pytest.raises(FormatError, match="a: has no feature 'y'"):
        example.values("y", is_bytes=True)
    with pytest.raises(FormatError, match="x: expected bytes, found numbers"):
        example.values("x", is_bytes=True)
    with pytest.raises(FormatError, match="b: expected numbers, found bytes"):
        example.numbers("b", np.dtype("int64"))
