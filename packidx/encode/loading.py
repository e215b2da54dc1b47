"""A transformers processor as `ProcessorFiles`, and its parts that make pixels."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from packidx.encode.imports import load_real, transformers_class
from packidx.encode.probe import MEDIA_PARTS, ProbedMedia, identity_of
from packidx.encode.settings import folder_with
from packidx.encode.whole import ids_of, quiet
from packidx.errors import MismatchError, OptionError, SourceError
from packidx.format.manifest import setting_differences
from packidx.processor.assemble import (
    DEFAULT_TEMPLATE,
    ProcessorFiles,
    assemble,
    named_templates,
    named_tokens,
)
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import FAMILIES
from packidx.processor.fingerprint import named_settings, normalise_tokenizer
from packidx.processor.folder import Given, fetch, folder_content, read_folder
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.text.vocabulary import Loaded, read_tokenizer

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
    overrides: dict[str, Any] = {}
    if settings:
        folder, overrides = folder_with(folder, settings)

    def unknown(template: ChatTemplate) -> ProbedMedia:
        content = folder_content(str(folder))
        return ProbedMedia(template, str(folder), content, trust_remote_code)

    files = read_folder(folder, name, policy, trust_remote_code, tokenizer_of, unknown)
    files.overrides = overrides
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
    backend = _backend(processor)
    templates = named_templates(getattr(processor, "chat_template", None))
    templates = templates or named_templates(getattr(tokenizer, "chat_template", None))
    if DEFAULT_TEMPLATE not in templates:
        raise OptionError(
            f"{type(processor).__name__} has no chat template: set processor.chat_template"
        )
    parts = (getattr(processor, part, None) for part in MEDIA_PARTS)
    image = next((part for part in parts if part is not None), None)
    _refuse_passed_on(processor)
    name = str(getattr(tokenizer, "name_or_path", "") or type(processor).__name__)
    return assemble(
        name=name,
        # A copy: transformers sets padding and truncation on the original with every call.
        loaded=Loaded(
            read_tokenizer(backend.to_str().encode()), _special_tokens(tokenizer), _limit(processor)
        ),
        templates=templates,
        processor_class=type(processor).__name__ if image is not None else None,
        image_settings=None if image is None else image.to_dict(),
        video_settings=_video_settings(processor, name),
        own_settings=vars(processor),
        policy=policy,
        trusts_code=any(map(_is_own_code, (processor, tokenizer))),
        unknown=lambda template: ProbedMedia(template, processor, identity_of(processor, template)),
    )


def _is_own_code(part: Any) -> bool:
    """Return whether transformers took its class from a folder."""
    return type(part).__module__.partition(".")[0] == "transformers_modules"


def _backend(processor: Any) -> Tokenizer:
    """The `tokenizers` tokenizer of a processor, or of a tokenizer alone.

    Raises:
        OptionError: it has none.
    """
    backend = getattr(getattr(processor, "tokenizer", processor), "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise OptionError(
            f"packidx needs a processor with a fast tokenizer, or the path of its folder, "
            f"not {type(processor).__name__}"
        )
    return backend


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


def tokenizer_of(folder: str, takes_media: bool, trusts_code: bool) -> dict[str, Any]:
    """Return what decides tokens of the tokenizer that transformers loads from a folder, as JSON:
    its serialisation, None where the folder's file is as good, its special tokens and its limit.

    Raises:
        Exception: transformers cannot load it.
    """
    made = None
    with quiet():
        if takes_media:
            # It may be that a processor cannot be loaded here, and its tokenizer can.
            with contextlib.suppress(Exception):
                made = load_real(folder, "AutoProcessor", trusts_code)
        if not hasattr(made, "tokenizer"):
            made = load_real(folder, "AutoTokenizer", trusts_code)
    written = _backend(made).to_str()
    path, is_same = os.path.join(folder, "tokenizer.json"), False
    if os.path.isfile(path):
        file = Tokenizer.from_file(path).to_str()
        is_same = normalise_tokenizer(file) == normalise_tokenizer(written)
    special = _special_tokens(getattr(made, "tokenizer", made))
    tokenizer = None if is_same else written
    return {"tokenizer": tokenizer, "special_tokens": special, "limit": _limit(made)}


def _refuse_passed_on(processor: Any) -> None:
    """What a processor passes to its parts whatever their settings, unless its family counts it.

    Raises:
        OptionError: it does.
    """
    family = FAMILIES.get(type(processor).__name__)
    for member in ("images_kwargs", "videos_kwargs"):
        if family and vars(processor).get(member) and member not in family.own_defaults:
            raise OptionError(
                f"{type(processor).__name__}.{member} is not counted: set these on its image or "
                "video processor instead"
            )


def _video_settings(processor: Any, name: str) -> dict[str, Any] | None:
    video = getattr(processor, "video_processor", None)
    if video is not None:
        settings: dict[str, Any] = video.to_dict()
        return settings
    # Without torchvision transformers has no video processor; the checkpoint has its settings.
    if getattr(processor, "image_processor", None) is not None and os.path.isdir(name):
        return load_processor(name).video_settings
    return None


def load_part(files: ProcessorFiles, kind: str) -> Any:
    """The image or video processor of a processor folder, with the settings that were counted.

    It alone is loaded, not the whole `AutoProcessor`, which cannot do without torchvision.

    Args:
        kind: ``"image"`` or ``"video"``.

    Raises:
        MissingExtraError, SourceError: as `load_real`.
        MismatchError: it has other settings.
    """
    processor = load_real(str(files.folder), f"Auto{kind.title()}Processor", False)
    _check_settings(processor, files, kind)
    return processor


def _check_settings(processor: Any, files: ProcessorFiles, kind: str) -> None:
    """A folder may hold two files of settings that differ, of which releases read one or the other.

    Raises:
        MismatchError: transformers read others than were counted.
    """
    family = next((known for known in FAMILIES.values() if known.name == files.family), None)
    counted = files.image_settings if kind == "image" else files.video_settings
    if family is None or counted is None:
        return
    defaults = family.image_defaults if kind == "image" else family.video_defaults
    loaded = family.complete(processor.to_dict(), defaults)
    named = [
        named_settings("", each, f"{kind}s" in family.older_names) for each in (loaded, counted)
    ]
    differences = setting_differences(named[1], named[0], "counted", "read")
    if differences:
        release = transformers_class("__version__")
        raise MismatchError(
            f"transformers {release} reads the settings of {files.name} otherwise than they were "
            f"counted ({', '.join(differences)}): make its preprocessor_config.json and "
            "processor_config.json agree, or use the release that saved it"
        )
