"""A path is loaded with the settings, a dataset is taken as it is."""

import pytest

import mmreplay
from mmreplay.adapters.source import opened

NOT_GIVEN = {"stack": ..., "seed": ..., "n_step": None, "gamma": None}


def test_path_is_loaded_with_the_settings_that_were_given(stores):
    (path,) = stores("one lane")
    with opened(path, NOT_GIVEN) as data, mmreplay.load(path) as plain:
        assert data.settings == plain.settings
        assert (data.prefetch, data.sample(8).id.tolist()) == (0, plain.sample(8).id.tolist())
    with opened([path], {**NOT_GIVEN, "stack": None, "n_step": 3}, prefetch=2) as data:
        assert (data.settings.stack, data.settings.n_step, data.prefetch) == (None, 3, 2)


def test_dataset_is_taken_as_it_is_and_refuses_other_settings(stores):
    with mmreplay.load(stores("one lane"), stack=2) as data:
        assert opened(data, NOT_GIVEN, prefetch=2) is data
        with pytest.raises(mmreplay.SchemaError, match="stack, gamma: expected none of these"):
            opened(data, {**NOT_GIVEN, "stack": 4, "gamma": 0.5})
