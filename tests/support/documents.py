"""The zarr.json files of a store, changed by a test."""

import json


def edit(path, change):
    """Change a zarr.json, and the copy of it that its lane has, if that is closed."""
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))
    change_copy(path.parent, change)


def change_copy(folder, change):
    """Change the document of an array or group in the copy that its lane has, if there is one."""
    for lane in folder.parents:
        copied = _copied(lane)
        name = folder.relative_to(lane).as_posix()
        if name in copied:
            change(copied[name])
            _replace_copy(lane, copied)


def lose(folder):
    """Remove the zarr.json of an array or group, and the copy of it that its lane has."""
    (folder / "zarr.json").unlink()
    for lane in folder.parents:
        copied = _copied(lane)
        if copied.pop(folder.relative_to(lane).as_posix(), None) is not None:
            _replace_copy(lane, copied)


def drop_copy(lane):
    """A closed lane as it was made before there was a copy of all its documents."""
    document = json.loads((lane / "zarr.json").read_bytes())
    del document["consolidated_metadata"]
    (lane / "zarr.json").write_text(json.dumps(document))


def attributes(path):
    """Those of mmreplay, of the store or lane at `path`."""
    return json.loads((path / "zarr.json").read_bytes())["attributes"]["mmreplay"]


def _copied(lane):
    try:
        return json.loads((lane / "zarr.json").read_bytes())["consolidated_metadata"]["metadata"]
    except (OSError, KeyError):
        return {}


def _replace_copy(lane, copied):
    document = json.loads((lane / "zarr.json").read_bytes())
    document["consolidated_metadata"]["metadata"] = copied
    (lane / "zarr.json").write_text(json.dumps(document))
