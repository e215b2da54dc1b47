"""Reading a processor folder: `tokenizer.json`, the chat template and the media settings.

File names and precedence are those of transformers 5.23 (`processing_utils.get_processor_dict`,
`image_processing_base`, `video_processing_utils`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from packidx.digests import digest, file_digests
from packidx.errors import SourceError
from packidx.processor.assemble import (
    ProcessorFiles,
    assemble,
    default_template,
    named_tokens,
)
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.text.vocabulary import read_tokenizer

PATTERNS = [
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    *("chat_template.json", "chat_template.jinja"),
]
"""What is fetched of a model that is given by name."""
_READ = (".json", ".jinja", ".txt", ".model", ".py")  # of a processor's folder, not its weights
_TEMPLATES = "additional_chat_templates"
Given = Mapping[str, Any]
"""Settings, ``{"images.max_pixels": 602112}``, or by part: ``{"images": {"max_pixels": 602112}}``;
without a part, or of ``processor``, the processor's own."""
OWN = "processor"
MEMBERS = {"images": "image_processor", "videos": "video_processor", "audio": "feature_extractor"}
"""Parts of a processor, and what transformers calls them."""
FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def load_processor(
    path_or_name: str | os.PathLike[str],
    policy: LabelPolicy = DEFAULT_POLICY,
    settings: Given | None = None,
) -> ProcessorFiles:
    """Read a processor folder, or fetch a model's processor files by name.

    Args:
        settings: in place of the folder's own (`Given`).

    Raises:
        OptionError: the processor has no such setting, or it is of another type.
        SourceError: the folder does not exist, a file in it is broken, or nothing in it is usable.
    """
    name = os.fspath(path_or_name)
    folder = Path(name)
    if not folder.is_dir():
        folder = _fetch(name)
    overrides: dict[str, Any] = {}
    if settings:
        # Imported by name: what is given is seldom.
        settled = import_module("packidx.encode.settings")
        folder, overrides = settled.folder_with(folder, settings)
    files = read_folder(folder, name, policy)
    files.overrides = overrides
    if files.vision is None and (files.tokenizer is None or files.template is None):
        raise SourceError(f"nothing usable in processor folder {name}: {_missing(files)}")
    return files


def _missing(files: ProcessorFiles) -> str:
    missing = []
    if files.tokenizer is None:
        missing.append("no tokenizer.json")
    if files.template is None:
        missing.append("no chat template (chat_template.jinja)")
    missing.append("no image settings of a known family (preprocessor_config.json)")
    return ", ".join(missing)


def _fetch(name: str) -> Path:
    relative = {".", ".."} & set(name.split("/"))
    if os.path.lexists(name) or relative or not _REPOSITORY.fullmatch(name):
        raise SourceError(f"processor folder {name} does not exist or is not a folder")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=PATTERNS))
    except Exception as error:  # offline, unknown, gated, not installed: one sentence for all
        reason = str(error).strip().split("\n")[0]
        raise SourceError(
            f"{name} is neither a folder nor a model whose processor could be fetched ({reason}): "
            "give the path of a folder with its tokenizer.json and preprocessor_config.json"
        ) from error


def read_folder(folder: Path, name: str, policy: LabelPolicy = DEFAULT_POLICY) -> ProcessorFiles:
    """The processor in `folder`, whatever of it is there."""
    source_digest = _source_digest(folder)
    tokenizer = _read_tokenizer(folder / "tokenizer.json")
    config = read_json(folder / "tokenizer_config.json")
    older = read_json(folder / "special_tokens_map.json")
    stated = Stated.read(folder)
    own = stated.of(OWN)
    # The first of these, for a processor that takes videos or sound alone.
    image = stated.of("images") or stated.of("videos") or stated.of("audio")
    files = assemble(
        name=name,
        tokenizer=tokenizer,
        template=_read_template(folder, own, config),
        special_tokens=named_tokens({**older, **config}),
        processor_class=stated.processor_class(config),
        image_settings=image or own.get("audio_processor"),
        video_settings=stated.of("videos") or None,
        # Which no class reads from a folder: an object alone has them.
        own_settings={name: own[name] for name in own if name != "images_kwargs"},
        policy=policy,
        folder=str(folder),
        # Imported by name: only unknown families need transformers.
        unknown=lambda template: import_module("packidx.encode.probe").ProbedVision(
            template, str(folder), content_of(str(folder))
        ),
    )
    files.source_digest = source_digest
    return files


def content_of(folder: str) -> list[str]:
    """Name and SHA-256 of every file that the real processor may read: more than ours reads.

    Raises:
        SourceError: one of them cannot be read.
    """
    try:
        templates = file_digests(os.path.join(folder, _TEMPLATES), _READ)
        return [*file_digests(folder, _READ), _TEMPLATES, *templates]
    except OSError as error:
        raise SourceError(f"processor folder {folder} cannot be read: {error}") from error


@dataclass
class Stated:
    """What a folder's files say of each part."""

    folder: Path
    files: dict[str, dict[str, Any]]
    """By name; empty where there is none."""

    @classmethod
    def read(cls, folder: Path) -> Stated:
        """
        Raises:
            SourceError: a file is no JSON object.
        """
        return cls(folder, {name: read_json(folder / name) for name in FILES})

    def place(self, part: str) -> tuple[str, str | None]:
        """The file that a part is read from, and its member there, as transformers 5.23 looks for
        it; that of images where nothing is said of videos."""
        nested, flat, video = FILES
        member = MEMBERS.get(part)
        if member is None or self.files[nested].get(member):
            return nested, member
        if part == "videos":
            return (video, None) if self.files[video] else self.place("images")
        return flat, None

    def of(self, part: str) -> dict[str, Any]:
        """A part's settings."""
        name, member = self.place(part)
        stated: dict[str, Any] = self.files[name] if member is None else self.files[name][member]
        return stated

    def processor_class(self, tokenizer_config: Mapping[str, Any]) -> str | None:
        """The first that is named."""
        files = (*(self.files[name] for name in FILES[:2]), tokenizer_config)
        return next(filter(None, (file.get("processor_class") for file in files)), None)


def read_json(path: Path) -> dict[str, Any]:
    """A file's JSON object; an empty one where there is no file.

    Raises:
        SourceError: it holds something else.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise SourceError(f"{path} is not readable JSON: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _source_digest(folder: Path) -> str:
    """Of the files that are read, by name.

    Raises:
        SourceError: one of them cannot be read.
    """
    parts: list[bytes] = []
    for name in PATTERNS:
        path = folder / name
        if path.is_file():
            try:
                parts += (name.encode(), path.read_bytes())
            except OSError as error:
                raise SourceError(f"{path} cannot be read: {error}") from error
    return digest(*parts)


def _read_tokenizer(path: Path) -> Tokenizer | None:
    if not path.is_file():
        return None
    try:
        return read_tokenizer(path.read_bytes())
    except Exception as error:  # tokenizers raises plain Exception
        raise SourceError(f"{path} is not a tokenizer that can be read: {error}") from error


def _read_template(
    folder: Path, nested: Mapping[str, Any], config: Mapping[str, Any]
) -> str | None:
    candidates: list[Any] = [nested.get("chat_template")]
    candidates.append(read_json(folder / "chat_template.json").get("chat_template"))
    raw = folder / "chat_template.jinja"
    if raw.is_file():
        try:
            candidates.append(raw.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise SourceError(f"{raw} is not readable text: {error}") from error
    candidates.append(config.get("chat_template"))
    return next((text for text in map(default_template, candidates) if text is not None), None)
