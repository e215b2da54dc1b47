"""The manifests, called ``.packidx.json``, of precomputed data sets and of exports."""

from collections.abc import Mapping
from typing import Any

from msgspec import field

from packidx.format.manifest import Encoder, JsonObject, Layout, Transform, written


class PrecomputedShard(JsonObject, frozen=True, kw_only=True):
    """A file of the data set, and the one that it was made of."""

    name: str
    uri: str
    source: str
    container: str
    bytes: int
    fingerprint: str
    layout: Layout | None = None
    num_samples: int
    num_rejected: int
    rejected: Mapping[str, int]


class PrecomputedManifest(JsonObject, frozen=True, kw_only=True):
    """The manifest of a data set with its counts in it."""

    format: str = written("packidx-precomputed")
    version: int = written(1)
    encoder: Encoder | None
    text_engine: Mapping[str, Any] | None
    options: Mapping[str, Any]
    software: Mapping[str, str]
    num_samples: int
    num_rejected: int
    shards: tuple[PrecomputedShard, ...]


class ExportedFile(JsonObject, frozen=True, kw_only=True):
    """A file of an export."""

    path: str
    bytes: int
    sha256: str


class EnergonManifest(JsonObject, frozen=True, kw_only=True):
    """The manifest of packs as text for Megatron-Energon."""

    format: str = written("packidx-energon")
    version: int = written(1)
    snapshot_id: str
    capacity: int
    num_packs: int
    num_samples: int
    num_media: int
    encoder: Encoder | None
    transform: Transform | None
    sources: Mapping[str, str]
    files: tuple[ExportedFile, ...]


class ExportedTar(ExportedFile, frozen=True, kw_only=True):
    """A tar of packs."""

    first_pack: int
    num_packs: int


class WdsManifest(JsonObject, frozen=True, kw_only=True):
    """The manifest of packs as WebDataset tars."""

    format: str = written("packidx-wds")
    version: int = written(1)
    snapshot_id: str
    options: Mapping[str, int]
    num_packs: int
    num_samples: int
    num_tokens: int
    num_media: int
    num_kept: int
    shards: tuple[ExportedTar, ...]
    software: Mapping[str, str] = field(default_factory=dict)
