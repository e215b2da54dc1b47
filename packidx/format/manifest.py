"""What all manifests have in common: how one is read, checked, and signed before it is written."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from packidx.digests import canonical_json, digest
from packidx.errors import FormatError
from packidx.format.decode import Form, JsonObject, Range, Unfit, decoded, written
from packidx.io import storage, urls
from packidx.io.copies import StoredFile

Container = Literal[
    Literal["jsonl", "json", "csv", "tsv"],
    Literal["jsonl.gz", "jsonl.zst", "json.gz", "json.zst"],
    Literal["csv.gz", "csv.zst", "tsv.gz", "tsv.zst"],
    Literal["parquet", "arrow", "tar"],
]

Count = Annotated[int, Range(0)]
Positive = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Sha256 = Annotated[str, Form(re.compile("[0-9a-f]{64}").fullmatch, "not 64 hex digits")]
SnapshotId = Annotated[str, Form(re.compile("[0-9a-f]{32}").fullmatch, "not 32 hex digits")]
Place = Annotated[str, Form(lambda path: path and "\0" not in path, "no path")]
"""A path or URL, as a user gave it."""
Name = Annotated[
    str,
    Form(re.compile(r"(?!\.\.?$)[^/\\]+").fullmatch, "no bare file name"),
    Form(str.isprintable, "no bare file name"),
]
"""Of a file in the manifest's own folder: it leads nowhere else, nor does a terminal obey it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File(JsonObject):
    """A file beside the manifest."""

    path: Name
    rows: Count
    bytes: Count
    sha256: Sha256

    def within(self, folder: str) -> StoredFile:
        """The file in the manifest's folder."""
        return StoredFile(urls.join(folder, self.path), self.bytes, self.sha256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard(JsonObject):
    """An input file."""

    uri: Place
    bytes: Count
    rows: Count
    fingerprint: Sha256
    source: str
    container: Container = "jsonl"
    mtime: int | None = None
    sampled: Sha256 | None = None
    identity: tuple[int, ...] | None = None
    """Its ctime in nanoseconds, device and inode."""
    version: str | None = None
    ranges: tuple[tuple[Count, ...], ...] | None = None
    """Where tasks of counting may start: first byte (or row group), end, first row, records and,
    where the first two do not say it, bytes of each."""
    columns: Mapping[str, str] | None = None
    """Of its records, where they are others than its source's, or used as something else."""

    def check(self) -> None:
        following = 0
        for part in self.ranges or ():
            if len(part) not in (4, 5) or part[2] != following or not part[3]:
                raise Unfit("has ", f": {part} does not begin at row {following}", ".ranges")
            following += part[3]
        if self.ranges is not None:
            equal(following, self.rows, "rows of ranges")


def as_planned(shard: Shard) -> Shard:
    """A shard as a plan has it, which counts nothing."""
    left_out = ("identity", "ranges", "columns")
    names = tuple(name for name in shard.names if name not in left_out)
    return replace(shard, identity=None, ranges=None, columns=None, names=names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(JsonObject):
    """A data set's own names; a member that nobody knows may change lengths, so there is none."""

    CLOSED: ClassVar[bool] = True

    columns: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    media_root: Place | None = None
    sample_ratio: Annotated[float, Range(0)] = 1.0
    delimiter: Annotated[str, Form(bool, "no text")] | None = None
    pair: Literal["chosen", "rejected", "both"] | None = None
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceData(JsonObject):
    """A named data set: where it is, and how large."""

    name: str
    media_root: Place | None
    remote_media: tuple[Place, ...] = ()
    layout: Layout | None = None
    columns: Mapping[str, str] | None = None
    """Of its records, and what each is used as; None where nobody looked."""
    num_samples: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder(JsonObject):
    """What builds the samples."""

    fingerprint: str | None
    name: str | None
    labels: str | None = None
    settings: Mapping[str, Any] | None = None
    overrides: Mapping[str, Any] | None = None
    compared: Mapping[str, Any] | None = None

    def differences(self, here: Mapping[str, Any]) -> list[str]:
        """Settings that are others here: ``images.max_pixels: 1003520 planned, 602112 here``."""
        return setting_differences(self.settings or here, here, "planned", "here")


def setting_differences(
    ones: Mapping[str, Any], others: Mapping[str, Any], of_ones: str, of_others: str
) -> list[str]:
    """What two processors' settings differ in, each with both values."""
    differences = []
    for name in sorted({*ones, *others}):
        one, other = (json.dumps(settings.get(name)) for settings in (ones, others))
        if one != other:
            differences.append(f"{name}: {one} {of_ones}, {other} {of_others}")
    return differences


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform(JsonObject):
    """A function that changes records before they are counted."""

    name: str
    seed: int
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests(JsonObject):
    """Of what decides a lengths table beside its shards: the values of all columns."""

    columns: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(JsonObject):
    """A manifest; each kind says what its `format` is, and what it must hold."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]

    format: str = written("")
    version: int = written(0)
    digest: str = written("")

    @classmethod
    def prove(cls, stated: Mapping[str, Any]) -> None:
        """Raise an `Unfit` unless what identifies it follows from what it holds."""


M = TypeVar("M", bound=Manifest)


def load(path: str | Path, kind: type[M], remedy: str) -> M:
    """The manifest at `path`, which is what FORMAT.md says: what reads it need not look again.

    Args:
        remedy: what the user should do where it is not one; ends the sentence.

    Raises:
        FormatError: not JSON, of another format or version, changed since it was written, or with
            a member that is missing or cannot be.
        OSError: a store cannot be asked.
    """
    try:
        stated = parse(storage.read(str(path)))
        form, version = stated["format"], stated["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        lasting = (FileNotFoundError, IsADirectoryError)
        if isinstance(error, OSError) and urls.is_url(str(path)) and type(error) not in lasting:
            raise  # the store's state says nothing of the manifest
        short = kind.FORMAT.removeprefix("packidx-")
        raise FormatError(f"{path} is no {short} manifest ({error!r:.200}); {remedy}") from None
    if form != kind.FORMAT:
        raise FormatError(f"{path} has format {form!r:.40}, not {kind.FORMAT!r}; {remedy}")
    if type(version) is not int or version < 1:
        raise FormatError(f"{path} has version {version!r:.40}, which is none; {remedy}")
    if version > kind.VERSION:
        known = f"this packidx knows {kind.VERSION}"
        raise FormatError(f"{path} has version {version!r:.20}; {known}: upgrade packidx")
    if version < kind.VERSION:
        raise FormatError(
            f"{path} has version {version}, of before packidx's first release: {remedy}"
        )
    try:
        return _checked(stated, kind)
    except Unfit as error:
        raise FormatError(f"{path} {error}; {remedy}") from None


def sealed(manifest: M) -> M:
    """A manifest to be written: with its digest, and proven to be one that `load` takes.

    Raises:
        FormatError: it is not.
    """
    kind = type(manifest)
    head = {"format": kind.FORMAT, "version": kind.VERSION}
    try:
        stated = parse(json.dumps(manifest.to_json() | head).encode())
        return _checked(stated | {"digest": content_digest(stated)}, kind)
    except ValueError as error:
        raise FormatError(
            f"the {kind.FORMAT} manifest {error}, which no reader would take: tell packidx's"
            " developers"
        ) from None


def content_digest(stated: Mapping[str, Any]) -> str:
    """SHA-256 of all that a manifest says: its `digest`.

    Raises:
        ValueError: it cannot be written as JSON in UTF-8.
    """
    return digest(canonical_json({k: v for k, v in stated.items() if k != "digest"}))


def parse(text: bytes) -> dict[str, Any]:
    """A JSON object whose members mean one thing to every reader.

    Raises:
        ValueError, RecursionError: it is none, a member is there twice, or a number is none.
    """
    value = json.loads(text.decode(), object_pairs_hook=_object, parse_constant=_no_number)
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__} and no object")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r:.40} is there twice")
    return members


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _checked(stated: dict[str, Any], kind: type[M]) -> M:
    try:
        own = content_digest(stated)
    except (ValueError, RecursionError) as error:
        raise Unfit(f"holds what is no JSON ({error!r:.80})") from None
    if stated.get("digest") != own:
        raise Unfit(
            f"has digest {stated.get('digest')!r:.70}, its content {own}: it was changed after it"
            " was written"
        )
    try:
        manifest = decoded(kind, stated)
    except RecursionError:
        raise Unfit("has lists in lists, too deep to be told") from None
    kind.prove(stated)
    return manifest


def unique(names: list[str], what: str) -> None:
    """Raise an `Unfit` if a name is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise Unfit(f"names the {what} {name!r:.80} twice")
        seen.add(name)


def equal(total: int, stated: int, what: str) -> None:
    """Raise an `Unfit` if a number is not the sum that it must be."""
    if total != stated:
        raise Unfit(f"has {total} {what} by its parts, and {stated} in all")
