"""The names of a store, and the metadata that is written."""

import copy
import json
import warnings

from zarr.core.metadata.v3 import ArrayV3Metadata

from mmreplay.format import layout, parse
from mmreplay.format.layout import ArraySpec
from tests.support.oracle.array_specs import SPECS, UINT8, root


def test_names_that_are_no_chunk_files_are_recognised():
    for name in ("", "c.1", "c.x.0.0", "c.01.0.0", "c.1.0.0.0", "c.1.0.1", "d.1.0.0", "c.-1.0.0",
                 "c.1.0.0.tmp", "zarr.json", "c.٣.0.0", "c. 1.0.0"):  # fmt: skip
        spec = ArraySpec("frames", (84, 84), UINT8, 10)
        assert spec.chunk_of(name) is None
        assert spec.chunk_of("c.7.0.0") == 7


def test_zarr_reads_the_same_array_and_would_write_the_same_metadata():
    for spec in SPECS:
        document = json.loads(layout.array_json(spec, 1000))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            metadata = ArrayV3Metadata.from_dict(copy.deepcopy(document))
        assert metadata.shape == (1000, *spec.row_shape)
        assert metadata.data_type.to_native_dtype() == spec.dtype
        assert metadata.encode_chunk_key((2, *(0,) * len(spec.row_shape))) == spec.key(2)
        assert metadata.fill_value == 0
        from zarr.core.buffer import default_buffer_prototype

        written = metadata.to_buffer_dict(default_buffer_prototype())["zarr.json"].to_bytes()
        assert parse.parse_array(written, spec.path, "here") == (spec, 1000)


def test_the_checksum_of_the_attributes_is_of_what_they_say():
    own = root()
    again = json.loads(json.dumps(dict(reversed(own.items())), indent=7))
    assert layout.digest(again) == layout.digest(own | {"crc32c": "whatever"}) == "705ad2c4"
    for key in own:
        assert layout.digest({name: one for name, one in own.items() if name != key}) != "705ad2c4"
    assert layout.digest(own | {"rows": 10.0}) != "705ad2c4"
