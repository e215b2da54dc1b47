"""The base of all manifests: one is read, checked, and signed before it is written.

A class is its own schema: types, ranges and forms of members stand with its fields, and msgspec
compares them. Unknown members are ignored, but for the objects that say otherwise. Modules of such
classes do not postpone their annotations, which msgspec reads.
"""

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import Meta, field
from msgspec.structs import fields, force_setattr, replace

from packidx.digests import canonical_json, digest_parts
from packidx.errors import FormatError, OptionError
from packidx.format.terms import ANSWERS, COLUMNS, PAIR_SIDES, TAGS
from packidx.io import storage, urls
from packidx.io.cache import StoredFile
from packidx.io.files import load_json, refuse_open_files


class Unfit(ValueError):
    """An error in a manifest, to stand behind its path."""


class JsonObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A JSON object with known members; one that has its default is left out where it is written,
    unless it is always `written_default`."""

    def to_json(self) -> dict[str, Any]:
        """The object for `json`."""
        members: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(self)))
        return members


K = TypeVar("K", bound=JsonObject)


def decode_json(kind: type[K], value: Any) -> K:
    """Return `value`, as `json` has it, as an object of `kind`; raise Unfit if it is none."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OptionError) as error:
        raise Unfit(f"is not as FORMAT.md has it: {error}") from None


def written_default(default: Any) -> Any:
    """A field with a default, which is written even so."""
    return field(default_factory=lambda: default)


Container = Literal[
    Literal["jsonl", "json", "csv", "tsv"],
    Literal["jsonl.gz", "jsonl.zst"],
    Literal["json.gz", "json.zst"],
    Literal["csv.gz", "csv.zst"],
    Literal["tsv.gz", "tsv.zst"],
    Literal["parquet", "arrow", "tar"],
]

LARGEST = (1 << 63) - 1
Integer = Annotated[int, Meta(ge=-LARGEST - 1, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
Number = Integer | Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
"""A finite one; an int stays one, so that it is written as it was."""
Amount = Count | Annotated[float, Meta(ge=0, le=sys.float_info.max)]
Share = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
SnapshotId = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
Place = Annotated[str, Meta(pattern=r"^[^\0]+\Z")]
"""A path or URL, as a user gave it."""
FileName = Annotated[str, Meta(pattern=r"^\w[\w.-]*\Z")]
"""A bare name: it leads to no other folder."""
_Name = Annotated[str, Meta(min_length=1)]


class File(JsonObject, frozen=True, kw_only=True):
    """A file beside the manifest."""

    path: FileName
    rows: Count
    bytes: Count
    sha256: Sha256

    def within(self, folder: str) -> StoredFile:
        """The file in the manifest's folder."""
        return StoredFile(urls.join_path(folder, self.path), self.bytes, self.sha256)


class RecordRange(msgspec.Struct, frozen=True, array_like=True):
    """A run of whole records of a shard, which a task reads."""

    start: Count
    """The start, in the container's own units: bytes, or numbers of row groups or records."""
    end: Count
    """One past its end, in the same units."""
    first_row: Count
    """Number of the first record in it."""
    num_records: Count
    weight: Count | None = None
    """Bytes of it, if `start` and `end` count something else."""
    torn: tuple[Count, ...] = ()
    """Rows in it whose files do not lie together, which a scan of the shard has found."""

    @property
    def nbytes(self) -> int:
        """About how much there is to read, in bytes."""
        return self.end - self.start if self.weight is None else self.weight


class Shard(JsonObject, frozen=True, kw_only=True):
    """An input file."""

    uri: Place
    bytes: Count
    rows: Count
    fingerprint: Sha256
    source: str
    container: Container = "jsonl"
    version: str | None = None
    """Time of change in nanoseconds; in a store, what the store has for a version."""
    ranges: tuple[RecordRange, ...] = ()
    """Values that tasks read."""


def as_planned(shard: Shard) -> Shard:
    """A shard as a plan has it, which counts nothing."""
    return replace(shard, ranges=())


_WHOLE = 1.0  # msgspec leaves out a default that is this very object


class Layout(JsonObject, frozen=True, forbid_unknown_fields=True):
    """A data set's own names: part of what decides its lengths, and so is a member that nothing
    knows.

    Raises:
        OptionError: a member cannot be, or names what there is not.
    """

    columns: Mapping[str, _Name] = field(default_factory=dict)
    """Standard column (`COLUMNS`) → the data set's own; several, in order, with commas between."""
    tags: Mapping[str, _Name] = field(default_factory=dict)
    """Tag (`TAGS`) → the data set's own word."""
    media_root: Place | None = None
    """Folder of its media, as given; None leaves it to the options."""
    sample_ratio: Amount = _WHOLE
    """The share that the mix wants: its planned weight. Lengths do not depend on it."""
    delimiter: _Name | None = None
    """Between cells, for tables in text; None is the kind's own."""
    pair: str | None = None
    """Side of preference pairs that is used (`PAIR_SIDES`); None if there are no pairs."""
    ignore: tuple[str, ...] = ()
    """Columns that are as if they were not there; of files in a tar, what follows the key."""
    answers: str | None = None
    """The one of different answers to use (`ANSWERS`); None refuses such records."""

    def __post_init__(self) -> None:
        for member in fields(self):
            try:
                msgspec.convert(value := getattr(self, member.name), member.type)
            except msgspec.ValidationError as error:
                raise OptionError(f"{member.name} is {value!r:.100}: {error}") from None
        if self.pair not in (None, *PAIR_SIDES):
            raise OptionError(f"pair is {self.pair!r}: give one of {', '.join(PAIR_SIDES)}")
        if self.answers not in (None, *ANSWERS):
            raise OptionError(f"answers is {self.answers!r}: give {', '.join(ANSWERS)}")
        for kind, given, known in (("column", self.columns, COLUMNS), ("tag", self.tags, TAGS)):
            for name in given:
                if name not in known:
                    text = f"there is no {kind} {name!r} to state; known: {', '.join(known)}"
                    raise OptionError(text)
        for word, number in Counter(self.tags.values()).items():  # a column may be two things
            if number > 1:
                raise OptionError(f"tag {word!r} is stated to be two things: give each its own")
        force_setattr(self, "columns", dict(sorted(self.columns.items())))
        force_setattr(self, "tags", dict(sorted(self.tags.items())))
        if self.sample_ratio == _WHOLE:
            force_setattr(self, "sample_ratio", _WHOLE)
        force_setattr(self, "ignore", tuple(sorted(set(self.ignore))))

    @property
    def stated_columns(self) -> set[str]:
        """All columns that are stated to be something."""
        return {name for own in self.columns.values() for name in (own, *own.split(","))}


DEFAULT = Layout()
"""The layout of a data set that uses standard names."""


class SourceData(JsonObject, frozen=True, kw_only=True):
    """A named data set: where it is, and how large."""

    name: str
    media_root: Place | None
    remote_media: tuple[Place, ...] = ()
    layout: Layout | None = None
    columns: Mapping[str, str] | None = None
    """The columns of its records, and the use of each; None if nothing looked at them."""
    num_samples: Count


class Compared(JsonObject, frozen=True, kw_only=True, rename={"by": "with"}):
    """Kinds of records that were compared with the real processor."""

    by: str | None
    """``'transformers 5.23.0'``; None if nothing was compared."""
    reason: str | None = None
    """Reason if nothing was compared."""
    computed: tuple[str, ...] = written_default(())
    """Kinds whose tokens are those that the rules give."""
    built: Mapping[str, str] = field(default_factory=dict)
    """Kinds whose records are all built → the first difference."""
    rare: Mapping[str, str | None] = field(default_factory=dict)
    """Kinds that were compared while counting → None, or the difference."""
    num_built: Count = 0
    """Rows that were built."""


class Encoder(JsonObject, frozen=True, kw_only=True):
    """The encoder that builds the samples."""

    fingerprint: str | None
    name: str | None
    labels: str | None = None
    settings: Mapping[str, Any] | None = None
    overrides: Mapping[str, Any] | None = None
    compared: Compared | None = None
    day: str | None = None
    """Day of counting, if the chat template writes the date."""

    def differences(self, here: Mapping[str, Any]) -> list[str]:
        """Settings that are others here: ``images.max_pixels: 1003520 planned, 602112 here``."""
        planned, differences = self.settings or here, []
        for name in sorted({*planned, *here}):
            one, other = (json.dumps(settings.get(name)) for settings in (planned, here))
            if one != other:
                differences.append(f"{name}: {one} planned, {other} here")
        return differences


def compared_of(encoder: Encoder | None) -> Compared | None:
    """Return what came of comparing an encoder; None without one, or if it renders no text."""
    return None if encoder is None else encoder.compared


def built_kinds(encoder: Encoder | None) -> frozenset[str]:
    """Return the kinds of records that the real processor built when they were counted."""
    compared = compared_of(encoder) or Compared(by=None)
    rare = (kind for kind, why in compared.rare.items() if why is not None)
    return frozenset((*compared.built, *rare))


class Transform(JsonObject, frozen=True, kw_only=True):
    """A function that changes records before they are counted."""

    name: str
    seed: Integer
    fingerprint: str
    is_random: bool = False
    """True if two copies of a record became different ones."""


class Manifest(JsonObject, frozen=True, kw_only=True, dict=True):
    """A manifest; each kind says what its `format` is, and what it must hold."""

    FORMAT: ClassVar[str]
    VERSION: ClassVar[int]

    format: str = written_default("")
    version: int = written_default(0)
    digest: str = written_default("")


M = TypeVar("M", bound=Manifest)


def load_manifest(path: str | Path, kind: type[M], remedy: str) -> M:
    """The manifest at `path`, which is what FORMAT.md says: what reads it need not look again.

    Args:
        remedy: what the user should do where it is not one; ends the sentence.

    Raises:
        FormatError: not JSON, of another format or version, changed since it was written, or with
            a member that is missing or cannot be.
        OSError: a store cannot be asked.
    """
    try:
        stated = load_json(storage.read(str(path)))
        form, version = stated["format"], stated["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse_open_files(error)
        lasting = (FileNotFoundError, IsADirectoryError)
        if isinstance(error, OSError) and urls.is_url(str(path)) and type(error) not in lasting:
            raise  # the store's state says nothing of the manifest
        short = kind.FORMAT.removeprefix("packidx-")
        raise FormatError(
            f"{path} is not a valid {short} manifest ({error!r:.200}); {remedy}"
        ) from None
    if form != kind.FORMAT:
        raise FormatError(f"{path} has format {form!r:.40}, not {kind.FORMAT!r}; {remedy}")
    if version != kind.VERSION:
        is_newer = isinstance(version, int) and version > kind.VERSION
        raise FormatError(
            f"{path} has version {version!r:.20}, this packidx reads {kind.VERSION}: "
            f"{'upgrade packidx' if is_newer else remedy}"
        )
    try:
        if (own := content_digest(stated)) != stated.get("digest"):
            was = f"digest {stated.get('digest')!r:.70}, its content {own}"
            raise FormatError(f"{path} has {was}: it was changed after it was written; {remedy}")
        return decode_json(kind, stated)
    except Unfit as error:
        raise FormatError(f"{path} {error}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path} holds what is not JSON ({error!r:.80}); {remedy}") from None


def seal_manifest(manifest: M) -> M:
    """A manifest to be written: with its digest, and proven to be one that `load_manifest` takes.

    Raises:
        FormatError: it is not.
    """
    kind = type(manifest)
    head = {"format": kind.FORMAT, "version": kind.VERSION}
    try:
        stated = load_json(json.dumps(manifest.to_json() | head))
        return decode_json(kind, stated | {"digest": content_digest(stated)})
    except ValueError as error:
        raise FormatError(
            f"the {kind.FORMAT} manifest {error}, which no reader would take: tell packidx's"
            " developers"
        ) from None


def content_digest(stated: Mapping[str, Any]) -> str:
    """SHA-256 of all that a manifest says, its `digest`; raise a ValueError if that is no JSON."""
    return digest_parts(canonical_json({k: v for k, v in stated.items() if k != "digest"}))
