"""A record's media as bytes, wherever it has them: files, members, cells, URIs, databases.

Bytes are copied as they are. Their extension is their content's, by its first bytes (magic numbers
as in file(1)), else the file's own: loaders choose a decoder by it, and a JPEG called ``.webp``
would come out of them as bytes.
"""

from __future__ import annotations

import os
import re
from typing import Any

from packidx.errors import BadRecord
from packidx.index import Sample
from packidx.io.ranges import Extent
from packidx.records.conversation import Conversation
from packidx.records.dialects.parse import parse
from packidx.records.fetch import Fetcher
from packidx.records.media.held import ending_of
from packidx.records.media.image_files import read_image
from packidx.records.media.inside import InRoot
from packidx.records.media.opener import MediaOpener
from packidx.records.media.paths import MediaRoot

Files = list[tuple[str, bytes]]
"""Name after the key, and content."""

_OWN = re.compile(r"\.([A-Za-z0-9]{1,8})$")


def extension(data: bytes, name: str = "") -> str:
    """The extension of a medium, without a dot; its file's own where the content tells none."""
    own = _OWN.search(name)
    return ending_of(data[:80]) or (own[1].lower() if own is not None else "bin")


def read_conversation(
    fetcher: Fetcher, sample: Sample, position: int
) -> tuple[Conversation, list[str | list[str]], Files]:
    """A sample's conversation, the names of its media in order of appearance, and the files.

    Args:
        position: the sample's place in its pack, which its files' names begin with.

    Raises:
        BadRecord, SourceError, PackidxError: as `Fetcher.read`, or it cannot be parsed.
    """
    fetched = fetcher.record(sample)
    collector = _Collector(fetched.root, fetcher.index.resolve)
    conversation = parse(collector.opened(fetched.record))
    names: list[str | list[str]] = []
    files: Files = []
    for number, medium in enumerate(conversation.media):
        stem = f"s{position:03d}_{number}"
        if isinstance(medium.ref, list | tuple):
            taken = [(f"{stem}_{at:04d}", ref) for at, ref in enumerate(medium.ref)]
        else:
            taken = [(stem, medium.ref)]
        read = [_file(name, collector.files.get(ref)) for name, ref in taken]
        files += read
        own = [name for name, _ in read]
        names.append(own if isinstance(medium.ref, list | tuple) else own[0])
    return conversation, names, files


def _file(stem: str, content: tuple[str, bytes] | None) -> tuple[str, bytes]:
    if content is None:
        raise BadRecord("bad_media", "a medium is given neither as a file nor as bytes")
    name, data = content
    return f"{stem}.{extension(data, name)}", data


class _Collector(MediaOpener):
    """Reads the bytes of a record's media, and puts a key of `files` in each one's place."""

    def __init__(self, root: MediaRoot, moved: Any) -> None:
        super().__init__(root, moved)
        self.files: dict[Any, tuple[str, bytes]] = {}
        """What stands in the record → the medium's own name, and its bytes."""

    def image(self, ref: Any) -> Any:
        return self._taken(ref)

    def video(self, ref: Any) -> Any:
        return self._taken(ref)

    def sound(self, ref: Any) -> Any:
        return self._taken(ref)

    def _taken(self, ref: Any) -> str:
        if not isinstance(ref, str | bytes | Extent):
            raise BadRecord("bad_media", f"a medium is given as {type(ref).__name__}")
        located = self.located_at(ref)
        data = read_image(located)  # of whatever kind: its bytes are not looked into
        if not data:
            raise BadRecord("broken_media", "a medium in the record is empty")
        stand_in = f"#{len(self.files)}"
        path = located.path if isinstance(located, InRoot) else located
        self.files[stand_in] = os.path.basename(path) if isinstance(path, str) else "", data
        return stand_in
