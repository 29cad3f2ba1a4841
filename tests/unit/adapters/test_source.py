"""A path is loaded with the settings, a dataset is taken as it is; what needs installing says so."""

import subprocess
import sys

import pytest

import mmreplay
from mmreplay.adapters.source import Listed, opened, reading_listed, uuids_of


@pytest.mark.parametrize(
    ("adapter", "framework"), [("torch", "torch"), ("huggingface", "datasets")]
)
def test_without_the_framework_the_import_says_what_to_install(adapter, framework):
    code = f"import sys; sys.modules[{framework!r}] = None; import mmreplay.adapters.{adapter}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"MissingExtraError: mmreplay.adapters.{adapter} needs" in done.stderr
    assert f'pip install "mmreplay[{adapter}]"' in done.stderr


def test_path_is_loaded_with_the_settings_that_were_given(stores):
    (path,) = stores("one lane")
    with opened(path, {}) as data, mmreplay.load(path) as plain:
        assert data.settings == plain.settings
        assert (data.prefetch, data.sample(8).id.tolist()) == (0, plain.sample(8).id.tolist())
    with opened([path], {"stack": None, "n_step": 3}, prefetch=2) as data:
        assert (data.settings.stack, data.settings.n_step, data.prefetch) == (None, 3, 2)


def test_dataset_is_taken_as_it_is_and_refuses_other_settings(stores):
    with mmreplay.load(stores("one lane"), stack=2) as data:
        assert opened(data, {}, prefetch=2) is data
        with pytest.raises(mmreplay.SchemaError, match="stack, gamma: expected no settings"):
            opened(data, {"stack": 4, "gamma": 0.5})


def test_what_was_listed_is_not_read_from_a_store_that_took_the_place(replaceable):
    path, replace = replaceable
    with mmreplay.load(path, stack=None) as data:
        around = mmreplay.Decorated(data, lambda batch, _: batch)
        listed = Listed(around)
        known = uuids_of(around)
        with reading_listed(around, known):
            data.transitions(data.ids[-1:])
        last = data.ids[-1:]
        replace()
        data.refresh()
        with pytest.raises(mmreplay.SchemaError, match="another at this path"):
            listed._read([0])
        for ids in (data.ids[:1], last):  # it has the first, too, and not the last
            with (
                pytest.raises(mmreplay.SchemaError, match=r"another at this path.*list them again"),
                reading_listed(around, known),
            ):
                data.transitions(ids)
