"""The files of one lane: chunk files, shards, the tail, checksums, the state page."""
