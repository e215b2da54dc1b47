"""A transformers processor as `ProcessorFiles`, and its parts that make pixels."""

from __future__ import annotations

import os
from typing import Any

from tokenizers import Tokenizer

from packidx.encode.imports import INSTALL, transformers_class
from packidx.encode.probe import MEDIA_PARTS, ProbedVision, identity_of
from packidx.errors import MismatchError, MissingExtraError, OptionError
from packidx.format.manifest import setting_differences
from packidx.processor.assemble import (
    ProcessorFiles,
    assemble,
    default_template,
    named_tokens,
)
from packidx.processor.families import FAMILIES
from packidx.processor.fingerprint import named_settings
from packidx.processor.folder import load_processor
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.text.vocabulary import read_tokenizer


def files_of(processor: Any, policy: LabelPolicy = DEFAULT_POLICY) -> ProcessorFiles:
    """The parts of a processor object, or of a tokenizer alone, as a folder of it would give them.

    Raises:
        OptionError: `processor` has no fast tokenizer or no chat template.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise OptionError(
            f"ProcessorEncoder needs a processor with a fast tokenizer, or the path of its folder, "
            f"not {type(processor).__name__}"
        )
    template = default_template(getattr(processor, "chat_template", None))
    template = template or default_template(getattr(tokenizer, "chat_template", None))
    if template is None:
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
        tokenizer=read_tokenizer(backend.to_str().encode()),
        template=template,
        special_tokens=named_tokens(tokenizer.special_tokens_map),
        processor_class=type(processor).__name__ if image is not None else None,
        image_settings=None if image is None else image.to_dict(),
        video_settings=_video_settings(processor, name),
        own_settings=vars(processor),
        policy=policy,
        unknown=lambda template: ProbedVision(
            template, processor, identity_of(processor, template)
        ),
    )


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
        MissingExtraError: transformers is not installed or cannot be used; or this release does not
            know the part's class, or needs torchvision for it, as some do for images, too.
        MismatchError: it has other settings.
    """
    loader = transformers_class(f"Auto{kind.title()}Processor")
    try:
        processor = loader.from_pretrained(files.folder)
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error.__cause__ or error).split())[:120]
        raise MissingExtraError(
            f"transformers' {kind} processors cannot be used ({reason} …): run {INSTALL}, and "
            "install the torchvision that belongs to your torch"
        ) from error
    except (ValueError, KeyError, AttributeError) as error:
        release = transformers_class("__version__")
        reason = " ".join(str(error).split())[:120]
        raise MissingExtraError(
            f"transformers {release} cannot load the {kind} processor of {files.folder} "
            f"({reason} …): use the release that saved it, or a newer one"
        ) from error
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
