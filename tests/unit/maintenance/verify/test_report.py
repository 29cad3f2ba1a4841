"""What `verify` found, as JSON."""

import json

from mmreplay import verify
from tests.support.disks.trees import flip


def test_the_report_as_json(lz4_store):
    flip(lz4_store / "rewards" / "c.1", 3)
    report = verify(lz4_store)
    document = json.loads(json.dumps(report.to_json()))
    assert document.pop("bytes") == report.bytes
    assert document.pop("files") == report.files
    (finding,) = document.pop("findings")
    assert finding.pop("message").startswith("checksum: expected crc32c ")
    assert finding == {
        "lane": "",
        "array": "rewards",
        "file": "rewards/c.1",
        "rows": [8, 16],
        "environment": None,
    }
    assert document == {
        "path": str(lz4_store),
        "sound": False,
        "state": "closed",
        "lanes": 1,
        "environments": 1,
        "rows": 33,
        "unflushed": 0,
        "from_start": False,
        "untrusted": 0,
        "warnings": [],
    }
