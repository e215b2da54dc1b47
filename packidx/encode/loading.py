"""A transformers processor as `ProcessorFiles`, and its parts that make pixels."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from packidx.digests import digest
from packidx.encode.imports import load_real
from packidx.encode.prober import MEDIA_PARTS, ProbedMedia
from packidx.encode.settings import change_settings, check_stated
from packidx.encode.whole import bare_tokenizer, ids_of, quiet
from packidx.errors import OptionError, PackidxError, SourceError
from packidx.processor.assemble import (
    DEFAULT_TEMPLATE,
    Loaded,
    ProcessorFiles,
    assemble,
    named_templates,
    named_tokens,
)
from packidx.processor.folder import (
    OWN,
    Given,
    Stated,
    fetch,
    own_code,
    read_json,
    read_templates,
)
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy

_FEW, _MOST = 64, 1 << 18
"""Tokens of texts that a processor is tried with."""


def load_processor(
    path_or_name: str | os.PathLike[str],
    policy: LabelPolicy = DEFAULT_POLICY,
    settings: Given | None = None,
    trust_remote_code: bool = False,
) -> ProcessorFiles:
    """Read a processor folder, or fetch a model's processor files by name.

    Args:
        settings: in place of the folder's own (`Given`).
        trust_remote_code: run the folder's own code, as transformers does where it is told to.

    Raises:
        OptionError: the processor has no such setting, or it is of another type.
        SourceError: the folder does not exist, a file in it is broken, or nothing in it is usable.
    """
    name = os.fspath(path_or_name)
    folder = Path(name)
    if not folder.is_dir():
        folder = fetch(name, trust_remote_code)
    stated = Stated.read(folder)
    overrides: dict[str, Any] = {}
    keywords: dict[str, dict[str, Any]] = {}
    if settings:
        stated, overrides, keywords = change_settings(stated, settings)
    check_stated(stated)
    own = stated.of(OWN)
    # The first of these, for a processor that takes videos or sound alone.
    image = stated.of("images") or stated.of("videos") or stated.of("audio")
    image = image or own.get("audio_processor") or {}
    code = own_code(folder, stated)
    trusts_code = trust_remote_code and code is not None
    templates = read_templates(folder, own)
    files = assemble(
        name=name,
        loaded=_load_tokenizer(folder, bool(image), code, trusts_code),
        templates=templates,
        processor_class=stated.processor_class(read_json(folder / "tokenizer_config.json")),
        image_settings=image or None,
        video_settings=stated.of("videos") or None,
        # Which no class reads from a folder: an object alone has them.
        own_settings={name: own[name] for name in own if name != "images_kwargs"},
        policy=policy,
        folder=str(folder),
        trusts_code=trusts_code,
        unknown=lambda template: ProbedMedia(template, str(folder), trusts_code, keywords),
    )
    files.overrides, files.keywords = overrides, keywords
    files.code = _code_of(folder) if trusts_code else None
    if files.vision is None and (files.tokenizer is None or files.template is None):
        raise SourceError(
            f"nothing usable in processor folder {name}: it has neither image settings of a known "
            "family (preprocessor_config.json) nor both a tokenizer.json and a chat template "
            "(chat_template.jinja)"
        )
    return files


def files_of(processor: Any, policy: LabelPolicy = DEFAULT_POLICY) -> ProcessorFiles:
    """The parts of a processor object, or of a tokenizer alone, as a folder of it would give them.

    Raises:
        OptionError: `processor` has no fast tokenizer or no chat template.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    bare = bare_tokenizer(processor)
    templates = named_templates(getattr(processor, "chat_template", None))
    templates = templates or named_templates(getattr(tokenizer, "chat_template", None))
    if DEFAULT_TEMPLATE not in templates:
        raise OptionError(
            f"{type(processor).__name__} has no chat template: set processor.chat_template"
        )
    parts = (getattr(processor, part, None) for part in MEDIA_PARTS)
    image = next((part for part in parts if part is not None), None)
    name = str(getattr(tokenizer, "name_or_path", "") or type(processor).__name__)
    modules = (type(part).__module__ for part in (processor, tokenizer))
    trusts_code = any(module.startswith("transformers_modules.") for module in modules)
    files = assemble(
        name=name,
        loaded=Loaded(
            bare,
            _special_tokens(tokenizer),
            _limit(processor),
            splits_special=bool(getattr(tokenizer, "split_special_tokens", False)),
        ),
        templates=templates,
        processor_class=type(processor).__name__ if image is not None else None,
        image_settings=None if image is None else image.to_dict(),
        video_settings=_video_settings(processor, name),
        own_settings=vars(processor),
        policy=policy,
        trusts_code=trusts_code,
        unknown=lambda template: ProbedMedia(template, processor),
    )
    files.code = _code_of(Path(name)) if trusts_code and os.path.isdir(name) else None
    return files


def _code_of(folder: Path) -> str:
    """Return the digest of a folder's Python files."""
    paths = sorted(folder.glob("*.py"))
    return digest(*(part for path in paths for part in (path.name.encode(), path.read_bytes())))


def _special_tokens(tokenizer: Any) -> dict[str, str]:
    named = tokenizer.special_tokens_map.items()
    return named_tokens({name: str(token) for name, token in named if not isinstance(token, list)})


def _limit(processor: Any) -> int | None:
    """Tokens that a processor cuts samples at, whatever is not asked of it: found by trying, as its
    tokenizer's configuration, its class and its release all have a say."""
    tokenizer = getattr(processor, "tokenizer", None)  # one alone cuts nothing by itself
    if tokenizer is None:
        return None
    stated, longest = tokenizer.init_kwargs.get("max_length"), tokenizer.model_max_length
    tokenizer.model_max_length = _FEW
    try:
        cut = _cut(processor, _FEW)
    finally:
        tokenizer.model_max_length = longest
    if cut is not None:
        return int(longest) - _FEW + cut
    return _cut(processor, stated) if isinstance(stated, int) else None


def _cut(processor: Any, limit: int) -> int | None:
    """Return what is left of a text of more tokens than `limit`; None where all of it is."""
    if not 0 < limit <= _MOST:
        return None
    text = "word " * (2 * limit)
    for given in (text, [text]):
        with contextlib.suppress(Exception), quiet():  # a foreign class: it may take no text alone
            left = len(ids_of(processor(text=given)))
            return left if left <= limit else None
    return None


_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")


def _load_tokenizer(folder: Path, takes_media: bool, code: str | None, trusts_code: bool) -> Loaded:
    """Load the tokenizer that training has.

    Raises:
        SourceError: transformers cannot load it.
        MissingExtraError: transformers cannot be used.
    """
    if not any(any(folder.glob(name)) for name in _VOCABULARIES):
        return Loaded(None)  # transformers would make up an empty one
    doubt = None
    if code is not None and not trusts_code:
        doubt = f"{code} names code of its own (auto_map): run it with --trust-remote-code"
    made = None
    with quiet():
        if takes_media:  # torch may be missing for the processor, and not for its tokenizer
            with contextlib.suppress(PackidxError):
                made = load_real(str(folder), "AutoProcessor", trusts_code)
        if not hasattr(made, "tokenizer"):
            try:
                made = load_real(str(folder), "AutoTokenizer", trusts_code)
            except SourceError:
                read_json(folder / "tokenizer.json")  # raises where that is the cause
                raise
        tokenizer = getattr(made, "tokenizer", made)
        splits = bool(getattr(tokenizer, "split_special_tokens", False))
        special = _special_tokens(tokenizer)
        return Loaded(bare_tokenizer(made), special, _limit(made), doubt, splits)


def _video_settings(processor: Any, name: str) -> dict[str, Any] | None:
    video = getattr(processor, "video_processor", None)
    if video is not None:
        settings: dict[str, Any] = video.to_dict()
        return settings
    # Without torchvision transformers has no video processor; the checkpoint has its settings.
    if getattr(processor, "image_processor", None) is not None and os.path.isdir(name):
        return Stated.read(Path(name)).of("videos") or None
    return None


def load_part(files: ProcessorFiles, kind: str) -> Any:
    """The image or video processor of a processor folder, with the settings that were counted.

    It alone is loaded, not the whole `AutoProcessor`, which cannot do without torchvision.

    Args:
        kind: ``"image"`` or ``"video"``.

    Raises:
        MissingExtraError, SourceError: as `load_real`.
    """
    own = files.keywords.get(f"{kind}s")
    keywords = {f"{kind}s": own} if own else None
    return load_real(str(files.folder), f"Auto{kind.title()}Processor", False, keywords)
