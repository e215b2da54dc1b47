"""A transformers processor as `ProcessorFiles`, and its parts that make pixels."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from packidx.digests import digest_parts
from packidx.encode.imports import load_real
from packidx.encode.prober import MEDIA_PARTS, ProbedMedia, plain_tokens
from packidx.encode.whole import bare_tokenizer, ids_of, quiet_transformers
from packidx.errors import MissingExtraError, OptionError, PackidxError, SourceError
from packidx.processor.assemble import TOOL_USE, ProcessorFiles
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import Family, MediaModel, find_family
from packidx.processor.families.base import CLIP_DEFAULTS
from packidx.processor.fingerprint import (
    EDGES,
    OF_IMAGES,
    OF_VIDEOS,
    complete_settings,
    named_settings,
    to_plain_json,
)
from packidx.processor.folder import (
    DEFAULT_TEMPLATE,
    FILES,
    MEMBERS,
    OWN,
    Given,
    Stated,
    fetch_processor_files,
    find_own_code,
    read_json,
    read_templates,
    to_named_templates,
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
        trust_remote_code: run the folder's own code, as transformers does if it is asked to.

    Raises:
        OptionError: the processor has no such setting, or it is of another type.
        SourceError: the folder does not exist, a file in it is broken or missing.
        MissingExtraError: transformers cannot be used.
    """
    name = os.fspath(path_or_name)
    folder = Path(name)
    if not folder.is_dir():
        folder = fetch_processor_files(name, trust_remote_code)
    stated, keywords = Stated.read(folder), dict[str, dict[str, Any]]()
    named = stated.processor_class(read_json(folder / "tokenizer_config.json"))
    family = find_family(named, stated.of("images"))
    if settings:
        stated, keywords = change_settings(stated, settings, family)
    if family is not None:
        check_stated(stated, family)
    own = stated.of(OWN)
    # The first of these, for a processor that takes videos or sound alone.
    image = stated.of("images") or stated.of("videos") or stated.of("audio")
    image = image or own.get("audio_processor") or {}
    code = find_own_code(folder, stated)
    trusts_code = trust_remote_code and code is not None
    templates = read_templates(folder, own)
    if not any(any(folder.glob(name)) for name in _VOCABULARIES):
        raise SourceError(f"there is no tokenizer.json in {folder}: {_ADD}")
    if DEFAULT_TEMPLATE not in templates:
        raise SourceError(f"there is no chat_template.jinja in {folder}: {_ADD}")
    if not image or trusts_code:  # code counts in any way
        family = None
    made, is_plain, problem = _load_real(folder, family, bool(image), trusts_code)

    def probe_media(template: ChatTemplate) -> MediaModel:
        if problem is not None:
            raise problem
        return ProbedMedia(template, str(folder), trusts_code, keywords)

    doubt = f"{code} names code of its own (auto_map): run it with --trust-remote-code"
    return _assemble_files(
        made,
        family,
        probe_media,
        templates=templates,
        image=image or None,
        video=stated.of("videos") or None,
        # Which no class reads from a folder: an object alone has them.
        own={name: own[name] for name in own if name != "images_kwargs"},
        name=name,
        policy=policy,
        trusts_code=trusts_code,
        is_plain=is_plain,
        folder=str(folder),
        overrides=dict(settings or {}),
        keywords=keywords,
        doubt=None if code is None or trusts_code else doubt,
        code=_code_of(folder) if trusts_code else None,
    )


def files_of(processor: Any, policy: LabelPolicy = DEFAULT_POLICY) -> ProcessorFiles:
    """The parts of a processor object, or of a tokenizer alone, as a folder of it would give them.

    Raises:
        OptionError: `processor` has no fast tokenizer or no chat template.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    templates = to_named_templates(getattr(processor, "chat_template", None))
    templates = templates or to_named_templates(getattr(tokenizer, "chat_template", None))
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
    settings: dict[str, Any] | None = None if image is None else image.to_dict()
    of_videos = getattr(processor, "video_processor", None)
    video = None if of_videos is None else of_videos.to_dict()
    # Without torchvision transformers has no video processor; the checkpoint has its settings.
    if video is None and getattr(processor, "image_processor", None) and os.path.isdir(name):
        video = Stated.read(Path(name)).of("videos") or None
    is_known = not (settings is None or trusts_code)
    return _assemble_files(
        processor,
        find_family(type(processor).__name__, settings or {}) if is_known else None,
        lambda template: ProbedMedia(template, processor),
        templates=templates,
        image=settings,
        video=video,
        own=vars(processor),
        name=name,
        policy=policy,
        trusts_code=trusts_code,
        code=_code_of(Path(name)) if trusts_code and os.path.isdir(name) else None,
    )


def _load_real(
    folder: Path, family: Family | None, takes_media: bool, trusts_code: bool
) -> tuple[Any, bool, PackidxError | None]:
    """Return the processor that training has, or its tokenizer alone; True if that makes the same
    of texts; and the reason if the processor cannot be loaded."""
    problem = None
    with quiet_transformers():
        if family is not None and family.processor_class != _LOADS_OTHERS:
            with contextlib.suppress(SourceError):
                made = load_real(str(folder), "AutoTokenizer", trusts_code)
                if _is_plain(made):
                    return made, True, None
        if takes_media:
            try:
                made = load_real(str(folder), "AutoProcessor", trusts_code)
                if hasattr(made, "tokenizer"):
                    return made, False, None
            except PackidxError as error:  # torch may be missing for it, and not for its tokenizer
                problem = error
        try:
            return load_real(str(folder), "AutoTokenizer", trusts_code), False, problem
        except SourceError:
            read_json(folder / "tokenizer.json")  # raises where that is the cause
            raise


_LOADS_OTHERS = "PixtralProcessor"
"""Loads its tokenizer by another class than `AutoTokenizer` does."""


def _is_plain(tokenizer: Any) -> bool:
    """Return True if a family's processor makes of a text what its tokenizer alone makes.

    A processor asks for the special tokens around a text, and calls the tokenizer with all of its
    settings that are arguments (``truncation`` …).
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer) or backend.padding or backend.truncation:
        return False
    with_own, alone = (backend.encode("a", add_special_tokens=adds).ids for adds in (True, False))
    arguments = inspect.signature(type(tokenizer).__call__).parameters.keys() - {"padding_side"}
    is_split = getattr(tokenizer, "split_special_tokens", False)
    return bool(with_own == alone and not is_split and arguments.isdisjoint(tokenizer.init_kwargs))


def _assemble_files(
    made: Any,
    family: Family | None,
    probe: Callable[[ChatTemplate], MediaModel],
    *,
    templates: Mapping[str, str],
    image: Mapping[str, Any] | None,
    video: Mapping[str, Any] | None,
    own: Mapping[str, Any],
    policy: LabelPolicy,
    is_plain: bool = False,
    **facts: Any,
) -> ProcessorFiles:
    """Return the parts of `made`, a transformers processor or a tokenizer alone.

    Args:
        family: counts the media.
        probe: makes the model that counts them if no family does; it gets the template without
            placeholders, and may raise a PackidxError.
        image, video, own: settings of the image and video processors and of the processor itself.
        facts: further members of the result.

    Raises:
        SourceError: neither the family nor `probe` counts media with these settings.
    """
    tokenizer = getattr(made, "tokenizer", made)
    named = tokenizer.special_tokens_map.items()  # bos_token, image_token …
    texts = {name: str(token) for name, token in named if not isinstance(token, list)}
    special = {name: text for name, text in texts.items() if name.endswith("_token")}
    # A plain one has no padding and never gets any; a copy takes 0.3 s.
    bare = made.backend_tokenizer if is_plain else bare_tokenizer(made)
    added = sorted(bare.get_added_tokens_decoder().items())

    def make_template(vision: MediaModel | None, called: str = DEFAULT_TEMPLATE) -> ChatTemplate:
        return ChatTemplate(
            templates[called],
            special,
            control_tokens=tuple(str(token.content) for _, token in added if token.special),
            media_tokens=None if vision is None else vision.written_tokens,
            empty_as_list=image is not None,
            policy=policy,
        )

    files = ProcessorFiles(
        tokenizer=bare,
        template=make_template(None),
        policy=policy,
        limit=_find_limit(made),
        splits_special=bool(getattr(tokenizer, "split_special_tokens", False)),
        is_plain=is_plain,
        **facts,
    )
    if image is None:
        files.tool_template = make_template(None, TOOL_USE) if TOOL_USE in templates else None
        return files
    files.image_settings = complete_settings(image)
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
        raise SourceError(f"processor {files.name}: {refusal}") from refusal
    if files.vision is not None:
        files.own_settings |= files.vision.settings or {}
        files.template = make_template(files.vision)
        plain = plain_tokens(bare)
        for token in files.vision.feature_tokens.values():
            # It may be repeated after the text is tokenized only if it is always one token.
            if token not in plain:
                raise SourceError(
                    f"processor {files.name}: its tokenizer.json has no plain added token {token}, "
                    "which its image processor's family needs"
                )
    return files


def _code_of(folder: Path) -> str:
    """Return the digest of a folder's Python files."""
    paths = sorted(folder.glob("*.py"))
    return digest_parts(
        *(part for path in paths for part in (path.name.encode(), path.read_bytes()))
    )


def _find_limit(processor: Any) -> int | None:
    """Tokens that a processor cuts samples at, whatever is not asked of it: found by trying, as its
    tokenizer's configuration, its class and its release all have a say."""
    tokenizer = getattr(processor, "tokenizer", None)  # one alone cuts nothing by itself
    if tokenizer is None:
        return None
    stated, longest = tokenizer.init_kwargs.get("max_length"), tokenizer.model_max_length
    is_stated = isinstance(stated, int) and 0 < stated <= _MOST
    limit, left = stated if is_stated else _FEW, sys.maxsize
    text = "word " * (2 * limit)
    tokenizer.model_max_length = _FEW
    try:
        for given in (text, [text]):
            with (
                contextlib.suppress(Exception),
                quiet_transformers(),
            ):  # a foreign class: it may take no text
                left = len(ids_of(processor(text=given)))
                break
    finally:
        tokenizer.model_max_length = longest
    if left > limit:
        return None
    return left if is_stated else int(longest) - _FEW + left


# -- settings that are given beside a folder: checked, and put into what it states -----------------

_SIZES = ("size", "crop_size", "pad_size", "max_image_size")
_MAY_BE_0 = ("num_additional_image_tokens", "initial_shift", "resample")
_FRACTIONS = ("fps", "rescale_factor", "max_duration", "initial_shift")
_SAMPLING = ("fps", "num_frames", "min_frames", "max_frames", "max_duration", "initial_shift")
_READ_WITH = dict.fromkeys(_SAMPLING, "do_sample_frames")
_READ_WITH |= {"crop_size": "do_center_crop", "pad_size": "do_pad"}
_READ_WITH |= {"max_video_tokens": "cap_pixels_per_frame"}
"""Settings, and the ones that switch them on."""


def change_settings(
    stated: Stated, given: Given, family: Family | None
) -> tuple[Stated, dict[str, dict[str, Any]]]:
    """Put settings into what a processor's folder states.

    Args:
        family: of the processor.

    Returns:
        The folder's settings with these in place of its own, and the keywords of each part's class.

    Raises:
        OptionError: there is no such setting, it is of another type, it has no effect, or the
            processor is of no family.
    """
    made = Stated(stated.folder, deepcopy(stated.files))
    if family is None:
        raise OptionError(
            f"settings are taken for families of packidx's own, and {made.folder} is of none: load "
            "the processor with them in transformers, and save_pretrained() another folder"
        )
    known = _list_settings(family, made)
    keywords: dict[str, dict[str, Any]] = {}
    for full, value in given.items():
        if full not in known:
            last = full.rpartition(".")[2]
            near = [name for name in known if name.endswith((f".{last}", f".{EDGES.get(last)}"))]
            listed = ", ".join(near or get_close_matches(full, known, 4) or known)
            raise OptionError(f"processor setting {full} does not exist; it may be one of {listed}")
        part, path = _split_name(full)
        name, _, key = path.partition(".")
        own = keywords.setdefault(part, {})
        before: Any = own.get(name, known.get(full.removesuffix(f".{key}")))
        if key and key not in (before or ()):
            raise OptionError(f"processor setting {full}: {name} is {before}, give it as a whole")
        wanted = wanted_type(key or name, value, known[full])
        if wanted is not None:
            raise OptionError(f"processor setting {full} is {value!r}: give {wanted}")
        if part in ("images", "videos") and made.place("videos") == made.place("images"):
            made.files[FILES[2]] = deepcopy(made.of("images"))
        own[name] = made.of(part)[name] = {**before, key: value} if key else value
    always = _SAMPLING if "video_sampling" in family.video_defaults else ()  # SmolVLM samples
    now = _list_settings(family, made)
    for full in given:
        part, path = _split_name(full)
        name = path.partition(".")[0]
        needed = f"{part}.{_READ_WITH.get(name)}"
        is_read = needed not in now or name in always or given[full] is None
        defaults = family.video_defaults if part == "videos" else family.image_defaults
        is_on = not defaults if now.get(needed) is None else now[needed]
        if not is_read and not is_on:
            raise OptionError(
                f"processor setting {full} has no effect without {needed}=true: add "
                f"--processor-set {needed}=true"
            )
    return made, keywords


def _split_name(full: str) -> tuple[str, str]:
    """Return the part and the path of a setting."""
    part, _, path = full.partition(".")
    return (part, path) if part in MEMBERS else (OWN, full)


def _list_settings(family: Family, stated: Stated) -> dict[str, Any]:
    """Return all settings by their full names, with their values now; None without one."""
    own = {name: stated.of(OWN).get(name) for name in family.own_defaults}
    known = own | family.complete(own, family.own_defaults)
    known.pop("images_kwargs", None)
    for part, defaults in (("images", family.image_defaults), ("videos", family.video_defaults)):
        if defaults or part == "images":
            is_older = part in family.older_names
            now = dict.fromkeys((*OF_IMAGES, *(OF_VIDEOS if part == "videos" else ()), *defaults))
            now |= family.complete(stated.of(part), defaults)
            if is_older:
                now["size"] = {**dict.fromkeys(EDGES), **(now["size"] or {})}
            known |= named_settings(part, now, is_older)
            hidden = {"size"} if is_older else set()
            known |= {f"{part}.{name}": now[name] for name in now.keys() - hidden}
    return dict(sorted(known.items()))


def wanted_type(name: str, value: Any, now: Any) -> str | None:
    """Return what a setting takes if `value` is of another type; None, the class's own, is of any.

    Args:
        now: its value now, or its default.
    """
    is_number = type(value) in (int, float)
    is_number = is_number and (value > 0 or (value == 0 and (now == 0 or name in _MAY_BE_0)))
    if name in _SIZES:
        wanted, fits = "an object of whole numbers", isinstance(value, Mapping)
        fits = fits and all(type(each) is int and each > 0 for each in value.values())
    elif name.startswith(("do_", "cap_")) or (isinstance(now, bool) and name not in _FRACTIONS):
        wanted, fits = "true or false", isinstance(value, bool)
    elif isinstance(now, float) or name in _FRACTIONS:
        wanted, fits = "a number", is_number
    elif isinstance(now, Mapping | list | tuple | str):
        kinds: dict[Any, str] = {Mapping: "an object", (list, tuple): "a list", str: "text"}
        kind = next(kind for kind in kinds if isinstance(now, kind))
        wanted, fits = kinds[kind], isinstance(value, kind)
    else:
        wanted, fits = "a whole number", is_number and isinstance(value, int)
    return None if value is None or fits else wanted


def check_stated(stated: Stated, family: Family) -> None:
    """Check the types of the settings that a folder of a family states.

    Raises:
        SourceError: one is of another type; the message names file and setting.
    """
    images = {**CLIP_DEFAULTS, **family.image_defaults}
    defaults = {"images": images, "videos": family.video_defaults, OWN: family.own_defaults}
    for part, own in defaults.items():
        for name, value in stated.of(part).items():
            if isinstance(value, Mapping):
                value = {key: each for key, each in value.items() if each is not None}
            value = to_plain_json(value)
            is_plain_size = name in _SIZES and type(value) is int and value > 0
            is_flag = isinstance(own.get(name), bool) and isinstance(value, bool)
            if name not in own or own[name] is None or is_plain_size or is_flag:
                continue
            if (wanted := wanted_type(name, value, own[name])) is not None:
                path = stated.folder / stated.place(part)[0]
                raise SourceError(f"{path}: {name} is {value!r}: give {wanted}")
