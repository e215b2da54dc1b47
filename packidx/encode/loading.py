"""A transformers processor as `ProcessorFiles`, and its parts that make pixels."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from packidx.digests import digest
from packidx.encode.imports import load_real
from packidx.encode.prober import MEDIA_PARTS, ProbedMedia, plain_tokens
from packidx.encode.settings import change_settings, check_stated
from packidx.encode.whole import bare_tokenizer, ids_of, quiet
from packidx.errors import MissingExtraError, OptionError, PackidxError, SourceError
from packidx.processor.assemble import TOOL_USE, ProcessorFiles
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import MediaModel, find_family
from packidx.processor.fingerprint import complete_settings
from packidx.processor.folder import (
    DEFAULT_TEMPLATE,
    OWN,
    Given,
    Stated,
    fetch,
    named_templates,
    own_code,
    read_json,
    read_templates,
)
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy

_FEW, _MOST = 64, 1 << 18
"""Tokens of texts that a processor is tried with."""
_ADD = "add the model's, or leave --processor out to guess all lengths"
_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken", "tekken.json")


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
        SourceError: the folder does not exist, a file in it is broken or missing.
        MissingExtraError: transformers cannot be used.
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
    if not any(any(folder.glob(name)) for name in _VOCABULARIES):
        raise SourceError(f"there is no tokenizer.json in {folder}: {_ADD}")
    if DEFAULT_TEMPLATE not in templates:
        raise SourceError(f"there is no chat_template.jinja in {folder}: {_ADD}")
    files = _assemble(
        _load(folder, bool(image), trusts_code),
        lambda template: ProbedMedia(template, str(folder), trusts_code, keywords),
        name=name,
        templates=templates,
        processor_class=stated.processor_class(read_json(folder / "tokenizer_config.json")),
        image=image or None,
        video=stated.of("videos") or None,
        # Which no class reads from a folder: an object alone has them.
        own={name: own[name] for name in own if name != "images_kwargs"},
        policy=policy,
        trusts_code=trusts_code,
    )
    files.folder, files.overrides, files.keywords = str(folder), overrides, keywords
    if code is not None and not trusts_code:
        files.doubt = f"{code} names code of its own (auto_map): run it with --trust-remote-code"
    files.code = _code_of(folder) if trusts_code else None
    return files


def files_of(processor: Any, policy: LabelPolicy = DEFAULT_POLICY) -> ProcessorFiles:
    """The parts of a processor object, or of a tokenizer alone, as a folder of it would give them.

    Raises:
        OptionError: `processor` has no fast tokenizer or no chat template.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    templates = named_templates(getattr(processor, "chat_template", None))
    templates = templates or named_templates(getattr(tokenizer, "chat_template", None))
    if DEFAULT_TEMPLATE not in templates:
        bare_tokenizer(processor)  # raises where there is none
        raise OptionError(
            f"{type(processor).__name__} has no chat template: set processor.chat_template"
        )
    parts = (getattr(processor, part, None) for part in MEDIA_PARTS)
    image = next((part for part in parts if part is not None), None)
    name = str(getattr(tokenizer, "name_or_path", "") or type(processor).__name__)
    modules = (type(part).__module__ for part in (processor, tokenizer))
    trusts_code = any(module.startswith("transformers_modules.") for module in modules)
    files = _assemble(
        processor,
        lambda template: ProbedMedia(template, processor),
        name=name,
        templates=templates,
        processor_class=type(processor).__name__ if image is not None else None,
        image=None if image is None else image.to_dict(),
        video=_video_settings(processor, name),
        own=vars(processor),
        policy=policy,
        trusts_code=trusts_code,
    )
    files.code = _code_of(Path(name)) if trusts_code and os.path.isdir(name) else None
    return files


def _load(folder: Path, takes_media: bool, trusts_code: bool) -> Any:
    """Return the processor that training has, or its tokenizer alone."""
    with quiet():
        if takes_media:  # torch may be missing for the processor, and not for its tokenizer
            with contextlib.suppress(PackidxError):
                made = load_real(str(folder), "AutoProcessor", trusts_code)
                if hasattr(made, "tokenizer"):
                    return made
        try:
            return load_real(str(folder), "AutoTokenizer", trusts_code)
        except SourceError:
            read_json(folder / "tokenizer.json")  # raises where that is the cause
            raise


def _assemble(
    made: Any,
    probe: Callable[[ChatTemplate], MediaModel],
    *,
    name: str,
    templates: Mapping[str, str],
    processor_class: str | None,
    image: Mapping[str, Any] | None,
    video: Mapping[str, Any] | None,
    own: Mapping[str, Any],
    policy: LabelPolicy,
    trusts_code: bool,
) -> ProcessorFiles:
    """Return the parts of `made`, a transformers processor or a tokenizer alone.

    Args:
        probe: makes the model that counts the media if no family does; it gets the template
            without placeholders, and may raise a PackidxError.
        image, video, own: settings of the image and video processors and of the processor itself.

    Raises:
        SourceError: neither the family nor `probe` counts media with these settings.
    """
    tokenizer, special = getattr(made, "tokenizer", made), _special_tokens(made)
    bare = bare_tokenizer(made)
    added = sorted(bare.get_added_tokens_decoder().items())

    def chat(vision: MediaModel | None, called: str = DEFAULT_TEMPLATE) -> ChatTemplate:
        return ChatTemplate(
            templates[called],
            special,
            control_tokens=tuple(str(token.content) for _, token in added if token.special),
            media_tokens=None if vision is None else vision.written_tokens,
            empty_as_list=image is not None,
            policy=policy,
        )

    files = ProcessorFiles(
        name, bare, chat(None), policy=policy, limit=_limit(made), trusts_code=trusts_code
    )
    files.splits_special = bool(getattr(tokenizer, "split_special_tokens", False))
    if image is None:
        files.tool_template = chat(None, TOOL_USE) if TOOL_USE in templates else None
        return files
    files.image_settings = complete_settings(image)
    family = None if trusts_code else find_family(processor_class, image)  # code counts in any way
    refusal = None
    try:
        if family is not None:
            read = family.read(image, video, own)
            files.vision, files.image_settings, files.video_settings, files.own_settings = read
            files.family, files.older_names = family.name, family.older_names
    except PackidxError as error:
        refusal = error
    try:
        files.vision = files.vision or probe(files.template)
    except PackidxError as error:
        files.unknown, files.lacks_package = str(error), isinstance(error, MissingExtraError)
    if refusal is not None and not (files.vision and "image" in files.vision.placeholders):
        raise SourceError(f"processor {name}: {refusal}") from refusal
    if files.vision is not None:
        files.own_settings |= files.vision.settings or {}
        files.template = chat(files.vision)
        plain = plain_tokens(bare)
        for token in files.vision.feature_tokens.values():
            # It may be repeated after the text is tokenized only if it is always one token.
            if token not in plain:
                raise SourceError(
                    f"processor {name}: its tokenizer.json has no plain added token {token}, "
                    "which its image processor's family needs"
                )
    return files


def _code_of(folder: Path) -> str:
    """Return the digest of a folder's Python files."""
    paths = sorted(folder.glob("*.py"))
    return digest(*(part for path in paths for part in (path.name.encode(), path.read_bytes())))


def _special_tokens(made: Any) -> dict[str, str]:
    """``bos_token``, ``image_token`` … of a tokenizer, as templates see them."""
    named = getattr(made, "tokenizer", made).special_tokens_map.items()
    texts = {name: str(token) for name, token in named if not isinstance(token, list)}
    return {name: text for name, text in texts.items() if name.endswith("_token")}


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


def _video_settings(processor: Any, name: str) -> dict[str, Any] | None:
    video = getattr(processor, "video_processor", None)
    if video is not None:
        settings: dict[str, Any] = video.to_dict()
        return settings
    # Without torchvision transformers has no video processor; the checkpoint has its settings.
    if getattr(processor, "image_processor", None) is not None and os.path.isdir(name):
        return Stated.read(Path(name)).of("videos") or None
    return None
