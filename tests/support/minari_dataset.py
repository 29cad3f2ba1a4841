"""A Minari dataset of HDF5 as it is documented, written without Minari."""

import json

import h5py
import numpy as np


def write_minari(folder):
    """Two episodes, which end differently; the path that was given."""
    data = folder / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w") as file:
        for number, n in enumerate((3, 4)):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": n, "seed": 7 + number})
            group["observations"] = np.arange(n + 1, dtype="f8")[:, None]
            group["actions"] = np.arange(n)
            group["rewards"] = np.ones(n)
            last = np.arange(n) == n - 1
            group["terminations"] = last & (number == 0)
            group["truncations"] = last & (number == 1)
            group["infos/x"] = np.arange(n + 1) * 10
    about = {"total_episodes": 2, "total_steps": 7, "data_format": "hdf5", "note": "kept"}
    (data / "metadata.json").write_text(json.dumps(about))
    return folder


def put(dataset, name, values):
    """Give the episodes these attributes, and none where it is None."""
    with h5py.File(dataset / "data" / "main_data.hdf5", "a") as file:
        for number, value in enumerate(values):
            attributes = file[f"episode_{number}"].attrs
            attributes.pop(name, None)
            if value is not None:
                attributes[name] = value
