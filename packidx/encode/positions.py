"""mRoPE positions of any model's sample, by the model's own `get_rope_index`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from packidx.encode.config_values import InferredConfig, Unknown
from packidx.encode.imports import allow_cuda_torchvision, transformers_class
from packidx.encode.rope_inputs import arguments, check_sides
from packidx.errors import MismatchError, OptionError

if TYPE_CHECKING:
    import torch

_ROWS = 3  # time, height, width


def model_positions(
    processor: Any, folder: str | None, sample: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    """Positions of one sample as its model makes them.

    The model is found by the ``config.json`` in `folder`, else by transformers' table of which
    processor serves which model. Without that file, ids of tokens and the merge size are those of
    the processor; a sample whose positions hang on anything else in it is refused.

    Args:
        processor: the real one, or the name of its class.
        folder: of the checkpoint, where there is one.
        sample: what the processor built: ``input_ids`` int64 ``[T]``, grids, and the like;
            ``mm_token_type_ids`` ``[T]`` if it makes them.

    Returns:
        int64 ``[3, T]``, or None where the model's positions have one dimension.

    Raises:
        OptionError: the model is not known, or a value that its positions hang on.
        MismatchError: the model makes no positions of this sample.
    """
    name = processor if isinstance(processor, str) else type(processor).__name__
    config = None if folder is None else _checkpoint_config(folder)
    if config is not None:
        return _by_config(_package(type(config)), config, processor, name, sample)
    made = {
        package: _by_processor(package, processor, name, sample)
        for package in _packages(_class_names(processor))
    }
    if not made:
        raise OptionError(
            f"which model {name} belongs to is not known, so neither are its positions: give a"
            " folder with the checkpoint's config.json"
        )
    first, *others = made.items()
    for other in others:
        if not _equal(first[1], other[1]):
            raise OptionError(
                f"{name} serves models that give this sample different positions"
                f" ({first[0]}, {other[0]}): give a folder with the checkpoint's config.json"
            )
    return first[1]


def rope_index(
    model_class: Any, config: Any, processor: Any, sample: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """`model_class.get_rope_index` of one sample, int64 ``[rows, T]``.

    It reads the configuration alone: no weights are made.

    Raises:
        MismatchError: it fails, or its positions are no whole numbers.
    """
    model = object.__new__(_without_weights(model_class))
    model.config = config
    taken = inspect.signature(model.get_rope_index).parameters
    given = arguments(taken, config, processor, sample)
    try:
        rows = model.get_rope_index(**given)[0]
    except Unknown:
        raise
    except Exception as error:  # foreign code: whatever it raises, there are no positions
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise MismatchError(
            f"{model_class.__name__} makes no positions of this sample ({reason}): its grids and"
            " tokens do not fit each other, or not the model"
        ) from error
    rows = rows[:, 0]
    check_sides(model_class.__name__, rows, sample)
    positions: torch.Tensor = rows.long()
    if not bool((positions == rows).all()):
        raise MismatchError(
            f"{model_class.__name__} gives this sample's video positions between whole numbers,"
            " which no pack can hold: sample its frames at a rate that gives whole ones"
        )
    return positions


# -- the model -------------------------------------------------------------------------------------


def _by_config(
    package: str, config: Any, processor: Any, name: str, sample: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    classes = _rope_classes(package)
    for each in _configs(config):
        for kind in classes:
            if kind.config_class is type(each):
                return _three(rope_index(kind, each, processor, sample), kind)
    if classes or _has_sections(config):
        raise OptionError(
            f"{name}: the positions of {config.model_type} have several rows, and nothing in this"
            " release of transformers makes them: pass your own encode(record) callable"
        )
    return None


def _by_processor(
    package: str, processor: Any, name: str, sample: Mapping[str, torch.Tensor]
) -> torch.Tensor | None:
    """Without the checkpoint's configuration: twice, with other values in place of unknown ones."""
    classes = _rope_classes(package)
    if not classes:
        return None
    if isinstance(processor, str):
        raise OptionError(
            f"the positions of {name}'s samples need ids of its tokens: give the processor itself,"
            " or a folder with the checkpoint's config.json"
        )
    kind = classes[0]
    inferred, other = _inferred(processor, kind)
    positions = rope_index(kind, inferred, processor, sample)
    unknown = sorted(inferred.unknown)
    if unknown and not _equal(positions, rope_index(kind, other, processor, sample)):
        raise OptionError(
            f"the positions of {name}'s videos or sounds hang on {', '.join(unknown)} of the model:"
            " give a folder with the checkpoint's config.json"
        )
    return _three(positions, kind)


_KEPT: WeakKeyDictionary[Any, dict[Any, tuple[InferredConfig, InferredConfig]]]
_KEPT = WeakKeyDictionary()
"""Processor → class → its inferred configurations, which take a tenth of a second to make."""


def _inferred(processor: Any, kind: Any) -> tuple[InferredConfig, InferredConfig]:
    """The configuration and another one, in which unknown numbers are others."""
    kept = _KEPT.setdefault(processor, {})
    if kind not in kept:
        default = kind.config_class()
        kept[kind] = (InferredConfig(default, processor), InferredConfig(default, processor, True))
    return kept[kind]


def _three(positions: torch.Tensor, kind: Any) -> torch.Tensor:
    if len(positions) != _ROWS:
        raise OptionError(
            f"{kind.__name__} has {len(positions)} rows of positions for each token, and packs"
            f" hold {_ROWS}: pass your own encode(record) callable, or train it without packing"
        )
    return positions


@lru_cache
def _rope_classes(package: str) -> tuple[Any, ...]:
    """The classes of a model's module that make positions from images: not its speaker, whose
    configuration has no vision."""
    try:
        module = import_module(f"{package}.modeling_{package.rsplit('.', 1)[1]}")
    except ModuleNotFoundError:
        return ()
    kinds = [kind for kind in vars(module).values() if hasattr(kind, "get_rope_index")]
    return tuple(
        kind
        for kind in kinds
        if getattr(kind, "config_class", None) and hasattr(kind.config_class(), "vision_config")
    )


@lru_cache
def _packages(names: tuple[str, ...]) -> tuple[str, ...]:
    """The packages of transformers whose models take a processor of one of these classes."""
    configs = _config_mapping()
    mapped = import_module("transformers.models.auto.processing_auto").PROCESSOR_MAPPING_NAMES
    for name in names:
        types = [kind for kind, known in mapped.items() if known == name and kind in configs]
        packages = {_package(configs[kind]) for kind in types}
        own = getattr(import_module("transformers"), name, None)
        if own is not None and _package(own).startswith("transformers.models."):
            packages.add(_package(own))
        if packages:
            return tuple(sorted(packages))
    return ()


def _class_names(processor: Any) -> tuple[str, ...]:
    if isinstance(processor, str):
        return (processor,)
    return tuple(kind.__name__ for kind in type(processor).__mro__)


def _package(kind: type) -> str:
    return kind.__module__.rsplit(".", 1)[0]


def _config_mapping() -> Any:
    allow_cuda_torchvision()
    return import_module("transformers.models.auto.configuration_auto").CONFIG_MAPPING


@lru_cache
def _checkpoint_config(folder: str) -> Any:
    """The model's configuration, or None where its file is not in `folder`."""
    path = Path(folder, "config.json")
    values: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    model_type = values.get("model_type")
    if model_type is None:
        return None
    configs = _config_mapping()
    if model_type not in configs:
        release = transformers_class("__version__")
        raise OptionError(
            f"transformers {release} does not know model type {model_type!r} of {path}, so its"
            " positions are not known: pass your own encode(record) callable, or use a release"
            " that knows it"
        )
    try:
        return configs[model_type].from_pretrained(folder)
    except Exception as error:  # foreign code checks what stands in the file
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise OptionError(
            f"{path} is no configuration of {model_type!r} ({reason}): put the checkpoint's there"
        ) from error


def _configs(config: Any) -> list[Any]:
    """`config` and those inside it."""
    inside = [each for each in vars(config).values() if hasattr(each, "to_dict")]
    return [config, *(deeper for each in inside for deeper in _configs(each))]


def _has_sections(config: Any) -> bool:
    return "mrope_section" in json.dumps(config.to_dict(), default=str)


@lru_cache
def _without_weights(model_class: Any) -> Any:
    """Its vision tower would have this."""
    size = property(lambda model: model.config.vision_config.spatial_merge_size)
    return type(model_class.__name__, (model_class,), {"spatial_merge_size": size})


def _equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool((one == other).all())
