"""The error tree: what a handler may catch, and what every error keeps."""

import copy
import errno
import pickle

import pytest

import mmreplay
from mmreplay import errors

CLASSES = [one for name, one in vars(errors).items() if name.endswith("Error")]

BUILTINS = {
    "SchemaError": ValueError,
    "UnsupportedError": AttributeError,
    "StoreNotFoundError": FileNotFoundError,
    "StoreExistsError": FileExistsError,
    "EmptyBufferError": LookupError,
    "InvalidIdError": LookupError,
    "DiskFullError": OSError,
    "ClosedError": ValueError,
}


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_is_an_mmreplay_error_and_offered_at_the_top(error):
    assert issubclass(error, errors.MmreplayError)
    assert issubclass(error, BUILTINS.get(error.__name__, Exception))
    assert getattr(mmreplay, error.__name__) is error


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_carries_one_finished_message_and_survives_copying_and_pickling(error):
    message = "/a/store: expected 3 rows, found 2; run `mmreplay verify`"
    one = error(message)
    for again in (copy.copy(one), pickle.loads(pickle.dumps(one))):
        assert type(again) is error
        assert str(one) == str(again) == message
        assert one.args == again.args == (message,)


def test_a_full_disk_says_so_by_its_number_also_after_pickling():
    full = errors.DiskFullError("no room")
    assert full.errno == errno.ENOSPC
    assert pickle.loads(pickle.dumps(full)).errno == errno.ENOSPC
    with pytest.raises(OSError, match="no room") as caught:
        raise full
    assert caught.value.errno == errno.ENOSPC
