"""Direct preference optimization (DPO) on packs of preference pairs, on the CPU.

    packidx estimate pairs.jsonl --pair both --processor data/processors/qwen2.5-vl -o lengths
    packidx plan lengths -o index --capacity 2048
    python examples/train_dpo.py --index index --processor data/processors/qwen2.5-vl

A pair's two samples are neighbours in one pack, so one forward pass over a pack gives both of their
log-probabilities, and no pair waits for another rank. The loss is the sigmoid loss of Rafailov et
al., Direct Preference Optimization, 2023 (arXiv 2305.18290), equation 7, the mean over all pairs of
a step, as TRL's `DPOTrainer` has it. The model is tiny and randomly initialised, its reference is
what it was at first; all else is real.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad
from torch.utils.data import DataLoader

from packidx.errors import OptionError
from packidx.index import Index, open_index
from packidx.torch import Pack, PackedDataset, PackSampler, collate, prepare_model
from train_tiny import build_model

BETA = 0.1


def collate_pairs(packs: Sequence[Pack]) -> dict[str, Any]:
    """What `model(**batch)` takes, ``pair_ids`` and ``segments`` besides.

    ``segments``, int64 [B, T], has the number of each token's sample, counted through all packs;
    -1 on padding.

    Raises:
        OptionError: a pack holds no pairs.
    """
    if any(pack.pair_ids is None for pack in packs):
        raise OptionError("a pack holds no pairs: estimate with --pair both, and plan again")
    batch = collate(packs)
    rows, first = [], 0
    for pack in packs:
        num_samples = len(pack.samples)  # segments behind them are padding
        slots = torch.tensor([segment.slot for segment in pack.segments[:num_samples]])
        numbers = torch.arange(first, first + num_samples).repeat_interleave(slots)
        rows.append(pad(numbers, (0, batch["input_ids"].shape[1] - len(numbers)), value=-1))
        first += num_samples
    return {**batch, "segments": torch.stack(rows)}


def log_probabilities(model: Any, batch: dict[str, Any]) -> Tensor:
    """Of each sample the sum over its label tokens, float [number of samples].

    Only where there are labels logits are computed: those of all tokens would take gigabytes.
    """
    inputs = dict(batch)
    labels, segments, pair_ids = (inputs.pop(key) for key in ("labels", "segments", "pair_ids"))
    hidden = model.model(**inputs).last_hidden_state[:, :-1]
    targets = labels[:, 1:]  # of a sample's first token there is no label
    chosen = (targets != -100).nonzero(as_tuple=True)
    logits = model.lm_head(hidden[chosen]).float()
    tokens = logits.log_softmax(-1).gather(1, targets[chosen][:, None])[:, 0]
    sums = tokens.new_zeros(len(pair_ids))
    return sums.index_add(0, segments[:, 1:][chosen], tokens)


def dpo_loss(
    log_ps: Tensor, reference_log_ps: Tensor, pair_ids: Tensor, beta: float = BETA
) -> Tensor:
    """The mean loss over all pairs.

    Args:
        log_ps, reference_log_ps: of each sample, float [number of samples].
        pair_ids: int64 [number of samples], as of `collate`: of two samples with one id the first
            is the chosen; -1 is of no pair.
    """
    of_pairs = (pair_ids >= 0).nonzero()[:, 0]
    chosen, rejected = of_pairs[pair_ids[of_pairs].argsort(stable=True)].view(-1, 2).T
    ratios = log_ps - reference_log_ps
    return -logsigmoid(beta * (ratios[chosen] - ratios[rejected])).mean()


def train(index: Index, processor: str, steps: int, workers: int) -> list[float]:
    """Run `steps` optimizer steps of one pack each; returns their losses."""
    model = prepare_model(build_model())
    reference = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler = PackSampler(index, global_batch=1)
    loader = DataLoader(
        PackedDataset(index, processor),
        batch_size=1,
        sampler=sampler,
        num_workers=workers,
        collate_fn=collate_pairs,
    )
    print(f"{model.num_parameters():,} parameters, {len(sampler)} packs per epoch")
    losses: list[float] = []
    while len(losses) < steps:
        sampler.set_epoch(sampler.epoch + bool(losses))
        for batch in loader:
            with torch.no_grad():
                reference_log_ps = log_probabilities(reference, batch)
            loss = dpo_loss(log_probabilities(model, batch), reference_log_ps, batch["pair_ids"])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            pairs = int((batch["pair_ids"] >= 0).sum()) // 2
            losses.append(float(loss.detach()))
            print(f"step {len(losses):3d}  loss {losses[-1]:6.4f}  {pairs:3d} pairs", flush=True)
            if len(losses) == steps:
                break
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", required=True, help="folder of an index with pairs")
    parser.add_argument("--processor", default="data/processors/qwen2.5-vl", help="its processor")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps of one pack each")
    parser.add_argument("--workers", type=int, default=1, help="DataLoader worker processes")
    args = parser.parse_args()
    losses = train(open_index(args.index), args.processor, args.steps, args.workers)
    print(f"loss {losses[0]:.4f} at first (ln 2 = 0.6931), {losses[-1]:.4f} at last")


if __name__ == "__main__":
    main()
