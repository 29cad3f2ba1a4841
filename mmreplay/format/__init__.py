"""The bytes of docs/format.md: names, zarr metadata, compression. No files are touched here."""
