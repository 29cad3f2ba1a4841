"""The zarr.json files of a store, changed by a test."""

import json


def edit(path, change):
    """Change a zarr.json."""
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def attributes(path):
    """Those of mmreplay, of the store or lane at `path`."""
    return json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]
