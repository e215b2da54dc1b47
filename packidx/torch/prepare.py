"""Prepare a model for training on packs, refuse one that cannot keep samples apart, and make masks
of packed rows for its kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from packidx.errors import MismatchError, OptionError
from packidx.torch.pixels import TABLE, normalise_pixels

IMPLEMENTATIONS = ("sdpa", "eager", "flex_attention", "flash_attention_2")
_SET = ("sdpa", "eager", "flex_attention")
_STATELESS = {"full_attention", "sliding_attention", "chunked_attention"}
_WINDOWED = {"sliding_attention", "chunked_attention"}
# Models whose image or prefix tokens see one another across samples, whatever the batch says,
# before transformers 5.24; in that one PaliGemma alone was measured, and its samples stay apart.
_PREFIX = {"paligemma", "git", "molmo2", "pi0"}
_BOTH_WAYS = (True, "all", "vision")
# Linear attention that takes the bounds of samples, given the kernels.
_GATED_DELTA = ("qwen3_5", "qwen3_next")
_KERNELS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}

Model = TypeVar("Model", bound=nn.Module)


def prepare_model(model: Model, *, attention: str | None = None) -> Model:
    """Set what packing needs on a transformers model, in place, and return it.

    Turns the cache off in every config it has: with a cache, transformers takes a pack for one long
    sample. Models whose own masks are wrong for packs get a forward hook that makes right ones
    (Gemma 3, sliding windows under flex_attention) or passes on where samples begin (linear
    attention). Padding is left out of ``router_logits``, and so of the router losses and expert
    counts of a mixture of experts. Pixels that come as bytes become floats (`normalise_pixels`).
    Call it before the model is wrapped or compiled; calling it again changes nothing. It refuses
    what is known not to work; `check_isolation` measures what your model does.

    Args:
        attention: what the text model is to attend by from now on: ``'sdpa'``, ``'eager'`` or
            ``'flex_attention'``, which Qwen2.5-VL refuses when it is loaded; None leaves it.

    Raises:
        OptionError: it is not a transformers model, or `attention` is not one of the three.
        MismatchError: its attention implementation or one of its layers lets samples see one
            another; the sentence says which, and what would not.
    """
    inner = unwrap_model(model)
    config = getattr(inner, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise OptionError(
            f"{type(inner).__name__} has no config that names its attention: give prepare_model a"
            " transformers model"
        )
    name = type(inner).__name__
    if attention is not None:
        if attention not in _SET:
            raise OptionError(
                f"attention {attention!r} is not one of {', '.join(_SET)}: load the model with"
                " another attn_implementation"
            )
        config.get_text_config()._attn_implementation = attention
    _check_model(name, inner, config)
    for each in _nested_configs(config):
        if hasattr(each, "use_cache"):
            each.use_cache = False
    config.use_cache = False
    for module, hook in _find_hooks(inner, config):
        install_hook(module, hook)
    if "pixel_values" in inspect.signature(inner.forward).parameters:
        install_hook(inner, normalise_arguments)
    if not any(isinstance(hook, RouterPadding) for hook in inner._forward_pre_hooks.values()):
        RouterPadding().attach_to(inner)
    return model


def unwrap_model(model: nn.Module) -> Any:
    """The model inside DistributedDataParallel, torch.compile and the like."""
    if callable(whole := getattr(model, "get_base_model", None)):  # PEFT
        return unwrap_model(whole())
    for name in ("_orig_mod", "module"):
        inner = getattr(model, name, None)
        if isinstance(inner, nn.Module):
            return unwrap_model(inner)
    return model


def _nested_configs(config: Any) -> Iterator[Any]:
    """`config` and those inside it."""
    yield config
    for each in list(vars(config).values()):
        if hasattr(each, "model_type") and hasattr(each, "to_dict"):
            yield from _nested_configs(each)


def _check_model(name: str, model: nn.Module, config: Any) -> None:
    """Refuse what is known to let packed samples see one another; `check_isolation` measures."""
    text = config.get_text_config()
    implementation = getattr(text, "_attn_implementation", None)
    known = isinstance(implementation, str) and "|" not in implementation
    if not known or not (implementation in IMPLEMENTATIONS or "flash" in str(implementation)):
        raise MismatchError(
            f"{name} uses attention implementation {implementation!r}, which is not known to keep"
            f" packed samples apart: load it with attn_implementation {', '.join(IMPLEMENTATIONS)}"
        )
    both_ways = getattr(text, "use_bidirectional_attention", None)
    if (
        config.model_type in _PREFIX
        or both_ways in _BOTH_WAYS
        or not getattr(text, "is_causal", True)
    ):
        raise MismatchError(
            f"{name} ({config.model_type}) lets tokens see one another in both directions, across"
            " packed samples too: train it on padded batches"
        )
    if config.model_type == "gemma3" and "flash" in str(implementation):
        raise MismatchError(
            f"{name} sees an image's tokens in both directions, which flash kernels cannot: its"
            " logits would be those of another model: load it with attn_implementation sdpa, eager"
            " or flex_attention"
        )
    if getattr(config, "is_encoder_decoder", False) or getattr(text, "cross_attention_layers", ()):
        raise MismatchError(
            f"{name} has cross-attention, through which packed samples see one another's images or"
            " inputs: train it on padded batches"
        )
    # Llama 4: its layers without rotary positions count columns of the row that they are given.
    if getattr(text, "attn_temperature_tuning", False) and 0 in getattr(text, "no_rope_layers", ()):
        raise MismatchError(
            f"{name} scales attention by where a token is in the pack, not in its sample"
            " (attn_temperature_tuning): load it with that False in its text_config, or train it on"
            " padded batches"
        )
    kinds = _layer_types(text)
    if "linear_attention" in kinds and str(text.model_type).startswith(_GATED_DELTA):
        missing = [package for module, package in _KERNELS.items() if find_spec(module) is None]
        if not torch.cuda.is_available():
            missing.append("a CUDA device")
        if missing:
            raise MismatchError(
                f"{name} has linear attention, whose torch code carries state from one packed"
                f" sample into the next, and what would not is missing here ({', '.join(missing)}):"
                " pip install flash-linear-attention causal-conv1d and run it on a GPU, or train it"
                " on padded batches"
            )
        recurrent = {type(module) for module in model.modules() if hasattr(module, "A_log")}
        if any("cu_seq_lens_q" not in inspect.getsource(kind) for kind in recurrent):
            raise MismatchError(
                f"{name} has linear attention that this release of transformers runs across packed"
                " samples: pip install 'transformers>=5.11', or train it on padded batches"
            )
        kinds -= {"linear_attention"}
    elif not kinds and any(hasattr(module, "A_log") for module in model.modules()):
        kinds = {"state space"}
    if other := sorted(kinds - _STATELESS):
        raise MismatchError(
            f"{name} has layers of type {', '.join(other)}, which are not known to keep packed"
            " samples apart: train it on padded batches"
        )


def _layer_types(text: Any) -> set[str]:
    for key in ("layer_types", "layers_block_type", "block_types"):
        if kinds := getattr(text, key, None):
            return {str(kind) for kind in kinds}
    return set()


def _find_hooks(model: nn.Module, config: Any) -> Iterator[tuple[nn.Module, Hook]]:
    """The modules that need a hook, and which."""
    text = config.get_text_config()
    kinds = _layer_types(text)
    windowed = bool(kinds & _WINDOWED) or (not kinds and getattr(text, "sliding_window", None))
    visions = {type(getattr(each, "vision_config", None)) for each in _nested_configs(config)}
    towers: tuple[str, ...] = ()
    for name, module in model.named_modules():
        own: Any = getattr(module, "config", None)  # a tower's is a copy, in some releases
        if own is config and config.model_type == "gemma3" and "language_model" in module._modules:
            yield module, bidirectional_images
        if own is text and "layers" in module._modules:
            if "linear_attention" in kinds:
                yield module, number_segments
            if windowed and text._attn_implementation == "flex_attention":
                yield module, drop_block_mask
        if own is not None and type(own) in visions and not name.startswith(towers):
            towers = (*towers, f"{name}.")
            if "flash" in str(own._attn_implementation):
                yield module, own_bounds


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Hook = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Arguments | None]


def install_hook(module: nn.Module, hook: Hook) -> None:
    """Register `hook` before `module`'s forward, once however often it is asked for."""
    if hook not in module._forward_pre_hooks.values():
        module.register_forward_pre_hook(hook, with_kwargs=True)


def normalise_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Make floats of pixels that came as bytes, in the type of the model's parameters."""
    if TABLE not in kwargs:
        return None
    return args, normalise_pixels(kwargs, next(module.parameters()).dtype)


class RouterPadding:
    """Leave padding out of the router logits that a mixture of experts returns and learns from.

    Its auxiliary loss and expert counts are taken from ``router_logits`` of all tokens, unless the
    model gets a 2-D attention mask, which would merge packed samples. It would take a BlockMask for
    one, so its base alone gets that.
    """

    def __init__(self) -> None:
        self._padding: Tensor | None = None
        self._mask: BlockMask | None = None

    def attach_to(self, model: nn.Module) -> None:
        """Register the three hooks on `model` and its base."""
        base: Any = getattr(model, "base_model", model)
        if base is not model:
            model.register_forward_pre_hook(self, with_kwargs=True)
            # Before hooks that replace the mask.
            base.register_forward_pre_hook(self.return_mask, prepend=True, with_kwargs=True)
            base.register_forward_hook(self.drop_padding)

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        self._padding = kwargs.pop("padding_mask", None)
        self._mask = mask = kwargs.get("attention_mask")
        if isinstance(mask, BlockMask):
            return args, {**kwargs, "attention_mask": None}
        self._mask = None
        return args, kwargs

    def return_mask(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        """Give the base of the model the BlockMask of the batch."""
        mask, self._mask = self._mask, None
        return None if mask is None else (args, {**kwargs, "attention_mask": mask})

    def drop_padding(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Keep the rows of ``router_logits`` of tokens: [B · T, E] or [B, T, E] in each layer."""
        padding, self._padding = self._padding, None
        layers = getattr(output, "router_logits", None)
        if padding is None or layers is None:
            return
        tokens, shapes = ~padding, (padding.shape, (padding.numel(),))
        if other := [layer.shape for layer in layers if layer.shape[:-1] not in shapes]:
            raise MismatchError(
                f"router_logits of shape {list(other[0])} are not of a batch of"
                f" {list(padding.shape)}: its padding cannot be left out of the router loss"
            )
        output.router_logits = tuple(
            layer[tokens if layer.ndim == 3 else tokens.flatten()] for layer in layers
        )


def bidirectional_images(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Gemma 3: masks per layer type, images seen in both directions within their own sample.

    transformers (5.23) looks image blocks up at a token's position in its sample as if that were
    its column: in sliding layers, every sample but the first gets the first one's images.
    """
    mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
    ours = mask is None or isinstance(mask, BlockMask)
    if not ours or positions is None or kwargs.get("past_key_values") is not None:
        return None
    types = kwargs.get("token_type_ids")
    if types is None:
        if kwargs.get("pixel_values") is None:
            return args, {**kwargs, "attention_mask": None}  # text: transformers' masks are right
        raise MismatchError(
            "the batch has pixel_values and no token_type_ids, so this model would read its images"
            " in one direction: let encode return token_type_ids, as the model's processor does"
        )
    own: Any = module.config
    config = own.get_text_config()
    implementation = str(config._attn_implementation)
    segments = _segments_of_positions(positions.expand(types.shape[0], -1))
    everywhere = Between(causal_within(segments).first, _last_seen(types == 1, segments))
    column = torch.arange(types.shape[1], device=types.device)
    oldest = column - config.sliding_window + 1  # that a sliding layer sees
    nearby = Between(everywhere.first.maximum(oldest), everywhere.last)
    dtype = next(module.parameters()).dtype
    rules = {"full_attention": everywhere, "sliding_attention": nearby}
    masks = {kind: _make_mask(rule, implementation, dtype) for kind, rule in rules.items()}
    return args, {**kwargs, "attention_mask": masks}


def _segments_of_positions(positions: Tensor) -> Tensor:
    """Number of each token's sample, int64 [B, T]: one begins where positions do not go on."""
    first = positions[:, :1] - 1
    return (positions.diff(prepend=first, dim=-1) != 1).cumsum(-1)


def _last_seen(image: Tensor, segments: Tensor) -> Tensor:
    """Column of the last token that each one sees, int64 [B, T]: its image's, or its own.

    Args:
        image: bool [B, T]; an image ends with its sample at the latest.
    """
    length = image.shape[1]
    column = torch.arange(length, device=image.device).expand_as(segments)
    goes_on = nn.functional.pad(image[:, :-1] & image[:, 1:] & (segments.diff(dim=-1) == 0), (0, 1))
    ends = torch.where(goes_on, length, column)
    return ends.flip(-1).cummin(-1).values.flip(-1)


def _make_mask(rule: Between, implementation: str, dtype: torch.dtype) -> Tensor | PackBlockMask:
    """Return what an attention implementation takes: a BlockMask; or [B, 1, T, T], which for eager
    is 0 where a token is seen and the lowest number elsewhere, for others bool."""
    if implementation == "flex_attention":
        return block_mask(rule)
    key = torch.arange(rule.first.shape[1], device=rule.first.device)
    seen = ((key >= rule.first[..., None]) & (key <= rule.last[..., None]))[:, None]
    if implementation != "eager":
        return seen
    zero = torch.zeros((), dtype=dtype, device=key.device)
    return torch.where(seen, zero, torch.finfo(dtype).min)


def drop_block_mask(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Sliding or chunked layers: one BlockMask for all layers would switch their windows off.

    Without it transformers makes a mask for each type of layer, where positions restart.
    """
    if not isinstance(kwargs.get("attention_mask"), BlockMask):
        return None
    return args, {**kwargs, "attention_mask": None}


def number_segments(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """Linear attention: its convolution needs ``seq_idx`` beside the bounds of its recurrence."""
    if kwargs.get("past_key_values") is not None:
        return None
    bounds = kwargs.get("cu_seq_lens_q")
    if bounds is None:
        raise MismatchError(
            "the batch does not state where its samples begin, which this model's linear attention"
            " needs: use collate(packs, attention='flash')"
        )
    if kwargs.get("seq_idx") is None:
        lengths = bounds.diff()
        numbers = torch.arange(len(lengths), device=bounds.device, dtype=torch.int32)
        kwargs = {**kwargs, "seq_idx": numbers.repeat_interleave(lengths)[None]}
    return args, kwargs


# How collate(packs, attention="flash") says where samples are.
_SAMPLES = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"}


def own_bounds(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Arguments | None:
    """A vision tower's images lie elsewhere than the samples, whose bounds some models hand on.

    Qwen-VL of transformers 5.11 to 5.18 does, and its tower then gives the kernel both.
    """
    if not _SAMPLES & kwargs.keys():
        return None
    return args, {key: value for key, value in kwargs.items() if key not in _SAMPLES}


BLOCK = 128  # tokens per tile of a BlockMask, flex_attention's own default


class Between:
    """The mask_mod "key in [first[query], last[query]]", an object so that workers can send it.

    Args:
        first, last: int64 [B, T], columns of the row, the token's own among them; neither ever
            falls along a row.
    """

    def __init__(self, first: Tensor, last: Tensor) -> None:
        self.first, self.last = first, last

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key >= self.first[batch, query]) & (key <= self.last[batch, query])

    def to(self, device: torch.device | str) -> Between:
        return Between(self.first.to(device), self.last.to(device))


def causal_within(numbers: Tensor) -> Between:
    """Return a mask function: a token sees its own segment up to itself.

    Args:
        numbers: int64 [B, T], another one wherever another segment begins.
    """
    column = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
    begins = numbers.diff(dim=-1, prepend=numbers[:, :1]) != 0
    return Between(torch.where(begins, column, 0).cummax(-1).values, column)


class PackBlockMask(BlockMask):
    """A BlockMask that takes the tensors its mask_mod reads along to another device."""

    mask_mod: Any

    def to(self, device: torch.device | str, **_: Any) -> PackBlockMask:
        """The same mask on `device`; keywords of Tensor.to (``non_blocking``) are accepted."""
        return block_mask(self.mask_mod.to(device))


def block_mask(rule: Between) -> PackBlockMask:
    """`rule` for flex_attention, one mask [B, 1, T, T] for all heads.

    What the tokens of a tile see follows from its first and last token, because neither bound ever
    falls: nothing of size T² is made.
    """
    length = rule.first.shape[1]
    starts = torch.arange(0, length, BLOCK, device=rule.first.device)
    ends = starts + BLOCK - 1
    last = ends.clamp(max=length - 1)

    some = rule.first[:, starts, None], rule.last[:, last, None]  # seen by some token of the tile
    every = rule.first[:, last, None], rule.last[:, starts, None]  # and by each of them
    seen = (ends >= some[0]) & (starts <= some[1])
    full = (starts >= every[0]) & (ends <= every[1]) & (ends < length)[:, None]
    mask: PackBlockMask = PackBlockMask.from_kv_blocks(
        *_list_tiles(seen & ~full),
        *_list_tiles(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=rule,
        seq_lengths=(length, length),
    )
    return mask


def _list_tiles(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """bool [B, rows, columns] -> how many columns each row has and which, marked ones first."""
    tiles = tiles[:, None]  # one mask for all heads
    order = torch.argsort(tiles.to(torch.int8), dim=-1, descending=True, stable=True)
    return tiles.sum(-1).to(torch.int32), order.to(torch.int32).contiguous()
