"""Kept pixels: what images become for a vision tower, decoded and resized once.

A folder of them holds ``pixels-….arrow`` files of rows in any order, ``keys-….arrow``, which says
in which row an image is, and ``pixels.json``. An image is known by the digest of its file's bytes,
wherever it lies and however often: nothing is looked up by a path. Bytes of patches are compressed
with Zstandard, and compared with their CRC-32 when they are read.
"""

import hashlib
import zlib
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from packidx.errors import FormatError
from packidx.format.manifest import Count, File, Manifest, check_files, equal, load
from packidx.io import urls
from packidx.io.copies import local_copy
from packidx.recent import Recent

KEY_BYTES = 16
NAME = "pixels.json"
PIXELS = pa.schema(
    [
        pa.field("key", pa.binary(KEY_BYTES)),
        pa.field("height", pa.int32()),
        pa.field("width", pa.int32()),
        pa.field("mode", pa.string()),
        pa.field("form", pa.string()),
        pa.field("grid", pa.list_(pa.int32(), 3)),
        pa.field("crc32", pa.uint32()),
        pa.field("patches", pa.large_binary()),
    ]
)
"""Columns of the files (FORMAT.md)."""
KEYS = pa.schema([("prefix", pa.uint64()), ("file", pa.int32()), ("row", pa.int64())])
"""Columns of the file of keys, sorted by `prefix`: a key's first eight bytes, the first of which
counts most."""

_ZSTD = pa.Codec("zstd", 1)
_MAPPED_BYTES = 1 << 30  # of files that a process keeps mapped: pages it touched count as its own


class PixelsManifest(Manifest, frozen=True, kw_only=True):
    """The manifest of a folder of kept pixels."""

    FORMAT: ClassVar[str] = "packidx-pixels"
    VERSION: ClassVar[int] = 1

    settings: Mapping[str, Any]
    """Of the image processor: what decides an image's pixels."""
    software: Mapping[str, str]
    num_images: Count
    files: tuple[File, ...] = ()
    keys: File | None = None

    def check(self) -> None:
        """See the base."""
        check_files([*self.files, *([self.keys] if self.keys else [])])
        equal(sum(file.rows for file in self.files), self.num_images, "images")


class KeptPixels(NamedTuple):
    """What is kept of one image."""

    size: tuple[int, int]
    """(width, height) in pixels, upright."""
    mode: str
    """Pillow's, of the image as it is opened."""
    form: str | None
    """Of its file: ``"JPEG"``."""
    grid: list[int]
    """Patches: time, height, width."""
    crc32: int
    patches: pa.Buffer

    def read(self, row_bytes: int) -> NDArray[np.uint8]:
        """Return the bytes of the patches, uint8 ``[patches, row_bytes]``.

        Raises:
            FormatError: they are damaged.
        """
        if zlib.crc32(self.patches) != self.crc32:
            raise FormatError("the pixels that were kept of an image are damaged: keep them anew")
        rows = int(np.prod(self.grid))
        content = _ZSTD.decompress(self.patches, rows * row_bytes)
        return np.frombuffer(content, np.uint8).reshape(rows, row_bytes)


def key_of(content: bytes) -> bytes:
    """Return what an image is known by: a digest of its file's bytes."""
    return hashlib.sha256(content).digest()[:KEY_BYTES]


def row_of(
    key: bytes, image: Any, form: str | None, grid: list[int], patches: NDArray[np.uint8]
) -> dict[str, Any]:
    """Return a row of `PIXELS`.

    Args:
        image: a PIL image.
        form: of its file.
        patches: uint8 ``[patches, row_bytes]``.
    """
    content = _ZSTD.compress(np.ascontiguousarray(patches), asbytes=True)
    return {
        "key": key,
        "height": image.height,
        "width": image.width,
        "mode": image.mode,
        "form": form,
        "grid": grid,
        "crc32": zlib.crc32(content),
        "patches": content,
    }


def as_keys(content: bytes) -> NDArray[np.bytes_]:
    """Return keys that lie one behind the other as an array, ``[n]``."""
    return np.frombuffer(content, f"S{KEY_BYTES}")


class PixelStore:
    """Finds the pixels of images by their files' bytes. It pickles small.

    Args:
        folder: of them.

    Raises:
        FormatError: there are none.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.manifest = load(urls.join(folder, NAME), PixelsManifest, "keep the pixels anew")
        self._keys: list[NDArray[Any]] | None = None
        self._tables: Recent[int, pa.Table] = Recent(_MAPPED_BYTES)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keys": None, "_tables": Recent(_MAPPED_BYTES)}

    def find(self, content: bytes) -> KeptPixels | None:
        """Return what was kept of an image; None where nothing was.

        Args:
            content: of its file.

        Raises:
            FormatError: a file is damaged, or is not there any more.
        """
        key = key_of(content)
        for number, row in self._places(key):
            table = self._table(number)
            if table["key"][row].as_py() != key:
                continue
            facts = {name: table[name][row].as_py() for name in ("mode", "form", "grid", "crc32")}
            size = table["width"][row].as_py(), table["height"][row].as_py()
            return KeptPixels(size=size, patches=table["patches"][row].as_buffer(), **facts)
        return None

    def known(self) -> NDArray[np.bytes_]:
        """Return all keys, ``[n]``."""
        keys = [_keys_in(self._table(number)) for number in range(len(self.manifest.files))]
        return np.concatenate([as_keys(b""), *keys])

    def _places(self, key: bytes) -> list[tuple[int, int]]:
        """File and row of the images whose key begins like this one's."""
        if self._keys is None:
            file = self.manifest.keys
            columns = [] if file is None else _mapped(file, self.folder).columns
            self._keys = [column.to_numpy() for column in columns]
        if not self._keys:
            return []
        prefixes, files, rows = self._keys
        wanted = np.uint64(int.from_bytes(key[:8]))
        begin, end = (int(np.searchsorted(prefixes, wanted, side)) for side in ("left", "right"))
        return list(zip(files[begin:end].tolist(), rows[begin:end].tolist(), strict=True))

    def _table(self, number: int) -> pa.Table:
        table = self._tables.get(number)
        if table is None:
            file = self.manifest.files[number]
            # Large, and each row has a sum of its own: not read whole to compare its digest.
            table = _mapped(file, self.folder, is_hashed=False)
            self._tables.put(number, table, file.bytes)
        return table


def keys_table(tables: list[NDArray[np.bytes_]]) -> pa.Table:
    """Return the table of keys of files that hold these, in order."""
    keys = np.concatenate([as_keys(b""), *tables])
    prefixes = np.frombuffer(keys.tobytes(), ">u8").reshape(-1, 2)[:, 0].astype(np.uint64)
    files = np.repeat(np.arange(len(tables), dtype=np.int32), [len(each) for each in tables])
    rows = np.concatenate([np.empty(0, np.int64), *(np.arange(len(each)) for each in tables)])
    order = np.argsort(prefixes, kind="stable")
    return pa.table([prefixes[order], files[order], rows[order]], schema=KEYS)


def keys_in(path: str) -> NDArray[np.bytes_]:
    """Return the keys of a file of pixels, ``[n]``."""
    return _keys_in(pa.ipc.open_file(pa.memory_map(path)).read_all())


def _keys_in(table: pa.Table) -> NDArray[np.bytes_]:
    return as_keys(b"".join(table["key"].to_pylist()))


def _mapped(file: File, folder: str, is_hashed: bool = True) -> pa.Table:
    stored = file.within(folder)
    with local_copy(stored if is_hashed else stored._replace(sha256=None)) as copy:
        return pa.ipc.open_file(pa.memory_map(copy)).read_all()
