"""The error tree: what a handler may catch, and what every error keeps."""

import copy
import errno
import pickle

import pytest

import mmreplay
from mmreplay import errors

CLASSES = [getattr(errors, name) for name in errors.__all__]

BUILTINS = {
    "SchemaError": ValueError,
    "StoreNotFoundError": FileNotFoundError,
    "StoreExistsError": FileExistsError,
    "EmptyBufferError": LookupError,
    "InvalidIdError": LookupError,
    "DiskFullError": OSError,
    "ClosedError": ValueError,
}


def test_all_lists_every_error_of_the_module():
    found = {
        name
        for name, one in vars(errors).items()
        if isinstance(one, type) and issubclass(one, Exception)
    }
    assert found == set(errors.__all__)


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_is_an_mmreplay_error_and_offered_at_the_top(error):
    assert issubclass(error, errors.MmreplayError)
    assert getattr(mmreplay, error.__name__) is error


@pytest.mark.parametrize(("name", "builtin"), BUILTINS.items())
def test_an_error_is_also_the_builtin_that_its_handler_knows(name, builtin):
    assert issubclass(getattr(errors, name), builtin)


@pytest.mark.parametrize("error", CLASSES)
def test_errors_without_a_builtin_of_their_kind_are_none(error):
    others = {ValueError, OSError, LookupError} - {
        kind
        for builtin in [BUILTINS.get(error.__name__, Exception)]
        for kind in (ValueError, OSError, LookupError)
        if issubclass(builtin, kind)
    }
    assert not any(issubclass(error, other) for other in others)


@pytest.mark.parametrize("error", CLASSES)
def test_every_error_carries_one_finished_message_and_survives_copying_and_pickling(error):
    message = "/a/store: expected 3 rows, found 2; run `mmreplay verify`"
    one = error(message)
    pickles = [pickle.dumps(one, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for again in (copy.copy(one), *map(pickle.loads, pickles)):
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


def test_a_full_disk_is_no_missing_file():
    assert not issubclass(errors.DiskFullError, FileNotFoundError)
    assert not issubclass(errors.StoreNotFoundError, errors.StoreExistsError)
