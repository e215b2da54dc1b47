"""Measure whether a model keeps the samples of a pack apart: packed against separate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from packidx.errors import MismatchError
from packidx.torch.collate import collate as collate_packs
from packidx.torch.dataset import PackedDataset
from packidx.torch.packs import Pack
from packidx.torch.prepare import unwrap_model
from packidx.torch.sample import TYPES

# Largest difference that rounding makes, as a share of the largest logit: measured 2e-6 in float32
# with tiny models; half types carry 8 or 11 bits.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_COMPARED = 64  # tokens of a sample
_SEARCHED = 1024  # packs

_CAUSES = (
    "the model was not given to prepare_model; a cache is on (pass use_cache=False); the batch has"
    " a 2-D attention_mask; its position_ids are missing or do not restart with each sample, in row"
    " 0 of [4, B, T] for mRoPE models"
)


class IsolationError(MismatchError):
    """A sample's logits depend on the pack it is in."""


def check_isolation(
    model: nn.Module,
    pack: Pack | PackedDataset,
    *,
    attention: str = "sdpa",
    tolerance: float | None = None,
    collate: Callable[[Pack], Mapping[str, Any]] | None = None,
) -> float:
    """Run `pack` once packed and once sample by sample; raise if their logits differ.

    Samples run alone without `position_ids` where the model makes its own, so wrong ones in the
    pack show as well. Nothing is trained: no gradients, evaluation mode, which is put back.
    Of each sample up to 64 tokens are compared, the first, the last and others evenly between: what
    leaks in shows in all that follow. Under FSDP give every rank the same pack.

    Args:
        pack: of several samples; or the `PackedDataset`, whose first pack of several samples, with
            images or videos if it has any, is taken.
        attention: what the run gives to `collate`.
        tolerance: largest difference allowed, as a share of the sample's largest logit (at least
            1); None takes one for the logits' dtype (1e-3 for float32, 5e-2 for bfloat16).
        collate: the run's own collate of one pack, where it is not ours.

    Returns:
        The largest difference found, in logits.

    Raises:
        IsolationError: a sample's logits differ; the first one is named, and likely reasons.
        MismatchError: the pack holds one sample.
    """
    if not isinstance(pack, Pack):
        stats = map(pack.index.stats, range(min(pack.index.num_packs, _SEARCHED)))
        several = [each for each in stats if each["num_samples"] > 1]
        media = [each for each in several if each["num_images"] or each["num_videos"]]
        pack = pack[(media or several or [{"pack_id": 0}])[0]["pack_id"]]
    alone = pack.alone()
    if len(alone) < 2:
        raise MismatchError(
            f"pack {pack.pack_id} holds one sample, so there is nothing to keep apart: give"
            " check_isolation the dataset, or a pack of several samples"
        )
    device = next(model.parameters()).device
    batch = dict(collate(pack) if collate is not None else collate_packs([pack], attention))
    worst = 0.0
    with torch.no_grad(), _evaluation_mode(model):
        compared = [
            torch.linspace(0, length - 1, min(length, _COMPARED)).round().long()
            for length in (sample.segments[0].length for sample in alone)
        ]
        starts = accumulate((segment.slot for segment in pack.segments), initial=0)
        tokens = [start + within for start, within in zip(starts, compared, strict=False)]
        logits = _compute_logits(model, batch, device, torch.cat(tokens))
        packed = torch.split(logits, [len(within) for within in compared])
        for at, sample in enumerate(alone):
            own = _compute_logits(
                model,
                _plain_arguments(sample, unwrap_model(model), attention),
                device,
                compared[at],
            )
            largest = max(1.0, float(own.abs().max()))
            allowed = _TOLERANCE.get(own.dtype, 1e-3) if tolerance is None else tolerance
            differences = (packed[at].double() - own.double()).abs().amax(-1)
            difference = float(differences.max())
            if not difference <= allowed * largest:  # NaN is a difference
                first = int((~(differences <= allowed * largest)).nonzero()[0])
                token = int(compared[at][first])
                raise IsolationError(
                    f"pack {pack.pack_id}, sample {int(sample.sample_ids)} at position {at}: its"
                    f" logits in the pack differ from those of the sample alone, from its token"
                    f" {token} on by up to {difference:.3g} (allowed: {allowed * largest:.3g})."
                    f" Usual causes: {_CAUSES}"
                )
            worst = max(worst, difference)
    return worst


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's own mode again after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _plain_arguments(sample: Pack, model: Any, attention: str) -> dict[str, Any]:
    """One sample's arguments, as little of the pack in them as the model allows."""
    if attention in ("indexed", "thd"):
        return collate_packs([sample], attention)  # such models take nothing else
    batch = collate_packs([sample], "flash" if attention == "flash" else "sdpa")
    # Qwen-Omni makes mRoPE positions only where it gets a mask; flash drops one of ones.
    asks = hasattr(model, "get_rope_index")
    if (attention != "flash" or asks) and _takes_argument(model, "attention_mask"):
        # As processors return it. Without it Qwen3-VL of transformers 4.57 and 5.0 looks for
        # samples in the positions that it makes of images, and cuts this one there.
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    if "mm_token_type_ids" not in batch and any("grid_thw" in key for key in batch):
        types = _media_types(batch["input_ids"], model.config)
        if not bool(types.any()):
            return batch  # the model could not make positions without them
        batch["mm_token_type_ids"] = types
    del batch["position_ids"]
    return batch


def _takes_argument(model: Any, argument: str) -> bool:
    """Return whether `model`, or the one inside an adapter such as PEFT's, takes an argument."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return argument in inspect.signature(base.forward).parameters


def _compute_logits(
    model: nn.Module, batch: Mapping[str, Any], device: torch.device, tokens: Tensor
) -> Tensor:
    """[n, vocabulary] of a batch of one row at `tokens`, int64 [n].

    The logits of a whole pack would be gigabytes; models that can are asked for these alone.
    """
    inputs = {
        key: value.to(device) if hasattr(value, "to") else value
        for key, value in batch.items()
        if key not in ("labels", "shift_labels")
    }
    tokens = tokens.to(device)
    few = _takes_argument(unwrap_model(model), "logits_to_keep")
    output = model(**inputs, logits_to_keep=tokens) if few else model(**inputs)
    logits: Tensor = getattr(output, "logits", output)
    logits = logits.reshape(-1, logits.shape[-1])
    return logits if few else logits[tokens]


def _media_types(ids: Tensor, config: Any) -> Tensor:
    """1 on tokens that stand for an image, 2 for a video, 3 for audio, else 0; as `ids`."""
    types = torch.zeros_like(ids)
    for kind, value in TYPES.items():
        for name in (f"{kind}_token_id", f"{kind}_token_index"):
            token = getattr(config, name, None)
            if isinstance(token, int):
                types[ids == token] = value
    return types
