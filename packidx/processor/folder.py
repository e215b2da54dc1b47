"""Read a processor folder: the chat template and the media settings.

File names and precedence are those of transformers 5.23 (`processing_utils.get_processor_dict`,
`image_processing_base`, `video_processing_utils`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packidx.errors import SourceError

PATTERNS = [
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json"),
    *("added_tokens.json", "tokenizer.model"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    *("chat_template.json", "chat_template.jinja"),
]
"""What is fetched of a model that is given by name."""
DEFAULT_TEMPLATE = "default"
_TEMPLATES = "additional_chat_templates"
Given = Mapping[str, Any]
"""Settings, ``{"images.max_pixels": 602112}``; without a part, the processor's own."""
OWN = "processor"
MEMBERS = {"images": "image_processor", "videos": "video_processor", "audio": "feature_extractor"}
"""Parts of a processor, and what transformers calls them."""
FILES = ("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json")
_CODE = ("Processor", "Tokenizer", "ImageProcessor", "VideoProcessor", "FeatureExtractor")
"""Parts that ``auto_map`` may name code of the folder's own for."""
_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?")


def fetch_processor_files(name: str, trusts_code: bool) -> Path:
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


@dataclass
class Stated:
    """The settings of each part in a folder's files."""

    folder: Path
    files: dict[str, dict[str, Any]]
    """Files by name; empty if there is none."""

    @classmethod
    def read(cls, folder: Path) -> Stated:
        """Read the settings in a folder.

        Raises:
            SourceError: a file is not a JSON object.
        """
        files = {name: read_json(folder / name) for name in FILES}
        for name, content in files.items():
            _refuse_odd(folder / name, "", content)
            kinds = dict.fromkeys(MEMBERS.values(), dict) | {"processor_class": str}
            for key, kind in kinds.items():
                if not isinstance(content.get(key), kind | None):
                    wanted = "text" if kind is str else "an object"
                    raise SourceError(f"{folder / name}: {key} is {content[key]!r}: give {wanted}")
        return cls(folder, files)

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
        """Return a part's settings."""
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


_MOST = 1 << 53
"""Numbers above this are none that JSON can hold exactly."""


def _refuse_odd(path: Path, key: str, value: Any) -> None:
    """Raise a SourceError if a value is a number that no setting has, or is not Unicode."""
    if isinstance(value, dict):
        for name, each in value.items():
            _refuse_odd(path, f"{key}.{name}" if key else name, each)
    elif isinstance(value, list):
        for each in value:
            _refuse_odd(path, key, each)
    elif isinstance(value, int | float) and not abs(value) < _MOST:
        raise SourceError(f"{path}: {key} is {value}: give a number below {_MOST}")
    elif isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        raise SourceError(f"{path}: {key} is {value!r}, which is not valid Unicode")


def find_own_code(folder: Path, stated: Stated) -> str | None:
    """Return the first of a folder's files that names code of its own; None if none does."""
    beside = {name: read_json(folder / name) for name in ("tokenizer_config.json", "config.json")}
    for name, content in (beside | stated.files).items():
        for part in (content, *content.values()):
            named = part.get("auto_map") if isinstance(part, Mapping) else None
            if isinstance(named, list) or any(f"Auto{kind}" in (named or ()) for kind in _CODE):
                return name
    return None


def read_templates(folder: Path, nested: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates, by name, of the first place that has a default template."""
    config = read_json(folder / "tokenizer_config.json")
    raw = {path.stem: _read_text(path) for path in sorted((folder / _TEMPLATES).glob("*.jinja"))}
    if (default := folder / "chat_template.jinja").is_file():
        raw[DEFAULT_TEMPLATE] = _read_text(default)
    older = read_json(folder / "chat_template.json")
    stated = (nested.get("chat_template"), older.get("chat_template"), raw)
    places = map(to_named_templates, (*stated, config.get("chat_template")))
    return next((templates for templates in places if DEFAULT_TEMPLATE in templates), {})


def to_named_templates(value: Any) -> dict[str, str]:
    """Templates by their names; a single one is ``default``."""
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value}
    if not isinstance(value, Mapping):
        value = {DEFAULT_TEMPLATE: value}
    return {name: text for name, text in value.items() if isinstance(text, str)}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (ValueError, OSError) as error:
        raise SourceError(f"{path} is not readable text: {error}") from error
