"""The files on disk, as FORMAT.md describes them."""
