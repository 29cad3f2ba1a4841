"""Changes to a store that its checksums do not show."""

import numpy as np

from mmreplay.format.compression import crc32c
from mmreplay.format.layout import digest
from tests.support import documents


def forge(lane, array, chunk, change):
    """Change a raw chunk file, and give it the checksum that it should have then."""
    file = next((lane / array).glob(f"c.{chunk}*"))
    data = bytearray(file.read_bytes())
    change(data)
    file.write_bytes(data)
    sums = lane / "checksums" / array / "c.0"
    table = np.frombuffer(sums.read_bytes(), "<u4").copy()
    table[chunk] = crc32c(np.frombuffer(data, np.uint8))
    sums.write_bytes(table.tobytes())


def edit(path, change):
    """Change a zarr.json, and the copy of it, as somebody who knows of its checksum."""

    def change_it(document):
        change(document)
        own = document["attributes"].get("mmreplay")
        if own is not None:
            own["crc32c"] = digest(own)

    documents.edit(path, change_it)
