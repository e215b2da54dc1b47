"""Reading a processor folder: `tokenizer.json`, the chat template and the media settings.

File names and precedence are those of transformers 5.23 (`processing_utils.get_processor_dict`,
`image_processing_base`, `video_processing_utils`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packidx.digests import digest, file_digests
from packidx.errors import SourceError
from packidx.processor.assemble import (
    DEFAULT_TEMPLATE,
    ProcessorFiles,
    assemble,
    named_templates,
    named_tokens,
)
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import MediaModel
from packidx.processor.labels import LabelPolicy
from packidx.processor.text.vocabulary import Loaded, doubt_of, load_tokenizer, read_tokenizer

PATTERNS = [
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
    *("added_tokens.json", "tokenizer.model"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    *("chat_template.json", "chat_template.jinja"),
]
"""What is fetched of a model that is given by name."""
_READ = (".json", ".jinja", ".txt", ".model", ".py")  # of a processor's folder, not its weights
_TEMPLATES = "additional_chat_templates"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
"""Files that say more of a tokenizer."""
Given = Mapping[str, Any]
"""Settings, ``{"images.max_pixels": 602112}``, or by part: ``{"images": {"max_pixels": 602112}}``;
without a part, or of ``processor``, the processor's own."""
OWN = "processor"
MEMBERS = {"images": "image_processor", "videos": "video_processor", "audio": "feature_extractor"}
"""Parts of a processor, and what transformers calls them."""
FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*")
_CODE = ("Processor", "Tokenizer", "ImageProcessor", "VideoProcessor", "FeatureExtractor")
"""Parts that ``auto_map`` may name code of the folder's own for."""
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def fetch(name: str, trusts_code: bool) -> Path:
    """A folder with the small files of a model that is given by name.

    Raises:
        SourceError: there is none, or it cannot be fetched.
    """
    relative = {".", ".."} & set(name.split("/"))
    if os.path.lexists(name) or relative or not _REPOSITORY.fullmatch(name):
        raise SourceError(f"processor folder {name} does not exist or is not a folder")
    try:
        from huggingface_hub import snapshot_download

        patterns = [*PATTERNS, f"{_TEMPLATES}/*.jinja", *(["*.py"] if trusts_code else ())]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # offline, unknown, gated, not installed: one sentence for all
        reason = str(error).strip().split("\n")[0]
        raise SourceError(
            f"{name} is neither a folder nor a model whose processor could be fetched ({reason}): "
            "give the path of a folder with its tokenizer.json and preprocessor_config.json"
        ) from error


TokenizerOf = Callable[[str, bool, bool], dict[str, Any]]
"""What transformers makes of a folder's tokenizer (`packidx.encode.loading.tokenizer_of`)."""


def read_folder(
    folder: Path,
    name: str,
    policy: LabelPolicy,
    trust_remote_code: bool,
    tokenizer_of: TokenizerOf,
    unknown: Callable[[ChatTemplate], MediaModel],
) -> ProcessorFiles:
    """The processor in `folder`, whatever of it is there.

    Args:
        unknown: as of `assemble`.
    """
    content = folder_content(str(folder))
    config = read_json(folder / "tokenizer_config.json")
    stated = Stated.read(folder)
    own = stated.of(OWN)
    # The first of these, for a processor that takes videos or sound alone.
    image = stated.of("images") or stated.of("videos") or stated.of("audio")
    code = _own_code(folder, stated)
    takes_media = bool(image or stated.of("audio"))
    files = assemble(
        name=name,
        loaded=_load(folder, content, takes_media, code, trust_remote_code, tokenizer_of),
        templates=_read_templates(folder, own, config),
        processor_class=stated.processor_class(config),
        image_settings=image or own.get("audio_processor"),
        video_settings=stated.of("videos") or None,
        # Which no class reads from a folder: an object alone has them.
        own_settings={name: own[name] for name in own if name != "images_kwargs"},
        policy=policy,
        folder=str(folder),
        trusts_code=trust_remote_code and code is not None,
        unknown=unknown,
    )
    files.source_digest = digest(*map(str.encode, content))
    return files


def folder_content(folder: str) -> list[str]:
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
    """The settings of each part in a folder's files."""

    folder: Path
    files: dict[str, dict[str, Any]]
    """By name; empty where there is none."""

    @classmethod
    def read(cls, folder: Path) -> Stated:
        """
        Raises:
            SourceError: a file is not a JSON object.
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


def _own_code(folder: Path, stated: Stated) -> str | None:
    """The first of the folder's files that names code of its own; None where none does."""
    beside = {name: read_json(folder / name) for name in ("tokenizer_config.json", "config.json")}
    for name, content in (beside | stated.files).items():
        for part in (content, *content.values()):
            named = part.get("auto_map") if isinstance(part, Mapping) else None
            if isinstance(named, list) or any(f"Auto{kind}" in (named or ()) for kind in _CODE):
                return name
    return None


def _load(
    folder: Path,
    content: list[str],
    takes_media: bool,
    code: str | None,
    trusts_code: bool,
    tokenizer_of: TokenizerOf,
) -> Loaded:
    """The tokenizer that training has, as far as it is known here.

    Raises:
        SourceError: its file cannot be read.
    """
    path = folder / "tokenizer.json"
    beside = {name: read_json(folder / name) for name in _BESIDE}
    doubt = None
    if code is not None and not trusts_code:
        doubt = f"{code} names code of its own (auto_map): run it with --trust-remote-code"
    elif any(any(folder.glob(name)) for name in _VOCABULARIES):  # else it makes up an empty one
        try:
            trusts_code = trusts_code and code is not None
            loaded = load_tokenizer(folder, content, takes_media, trusts_code, tokenizer_of)
            if loaded is not None:
                return loaded
        except MemoryError:
            raise
        except Exception as error:  # transformers raises whatever the folder makes it stumble over
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            doubt = f"transformers cannot load its tokenizer ({reason})"
    special = {**beside["special_tokens_map.json"], **beside["tokenizer_config.json"]}
    if not path.is_file():
        return Loaded(None, named_tokens(special), doubt=doubt)
    try:
        tokenizer = read_tokenizer(path.read_bytes())
    except Exception as error:  # tokenizers raises plain Exception
        raise SourceError(f"{path} is not a tokenizer that can be read: {error}") from error
    if doubt is None and (other := doubt_of(tokenizer, beside)):
        doubt = f"training may not take its tokenizer.json as it is: {other}"
    return Loaded(tokenizer, named_tokens(special), doubt=doubt)


def _read_templates(
    folder: Path, nested: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, str]:
    """The first of the places that has a default template: what it has, by name."""
    raw = {path.stem: _text(path) for path in sorted((folder / _TEMPLATES).glob("*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        raw[DEFAULT_TEMPLATE] = _text(default)
    older = read_json(folder / "chat_template.json")
    stated = (nested.get("chat_template"), older.get("chat_template"), raw)
    places = map(named_templates, (*stated, config.get("chat_template")))
    return next((templates for templates in places if DEFAULT_TEMPLATE in templates), {})


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise SourceError(f"{path} is not readable text: {error}") from error
