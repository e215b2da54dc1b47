"""Teach a tiny model to answer questions about drawings, on packs and on padded rows, on the CPU.

    python examples/train_vqa.py --corpus data/corpus --processor data/processors/qwen2.5-vl

The questions are easy-vqa's (`make_corpus.py`): what shape, what colour, is there a blue circle.
One drawing in ten is held out with all its questions. The same model is trained twice on the same
samples in the same steps: packed, as planned, and with one sample per row, padded. Both get the
same gradients but for rounding, so both learn the same: a picture shows it, and a table how well
they answer about drawings they never saw, and how many tokens per second they trained on.

Data, plan and reader are real; the model is tiny, and so is its vocabulary: the ids that easy-vqa
uses, numbered anew, in place of Qwen's 151,936. It takes some 5 minutes on two cores.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from packidx import estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.encode.imports import allow_cuda_torchvision
from packidx.torch import Pack, PackedDataset, PackSampler, collate
from vqa_questions import KINDS, deal_questions, guessed, kind_of

HOLDOUT = "0.1"  # share of the drawings that is never trained on
CAPACITY = 256  # attention costs the square of a row: what wider rows fill they lose on a CPU
PACKS_PER_STEP = 4
HIDDEN, LAYERS = 64, 3
STEPS, WARM_UP, LEARNING_RATE = 1000, 50, 2e-3

# --- the data -------------------------------------------------------------------------------------


def plan(corpus: Path, processor: Path, out: Path, limit: int | None = None) -> None:
    """Lengths of the dealt questions, and a plan of either side of the holdout."""
    out.mkdir(parents=True, exist_ok=True)
    shard = out / "questions.jsonl"
    with shard.open("w") as file:
        file.writelines(json.dumps(one) + "\n" for one in deal_questions(corpus, limit))
    lengths = out / "lengths"
    estimate_lengths([str(shard)], lengths, processor=str(processor), media_root=str(corpus))
    plan_packs(lengths, out / "train", capacity=CAPACITY, holdout=HOLDOUT)
    plan_packs(lengths, out / "holdout", capacity=CAPACITY, holdout_only=HOLDOUT)


def read(index: Path, encode: ProcessorEncoder, workers: int = 2) -> list[Pack]:
    """Every pack of a snapshot, in memory, pixels in 16 bits: each is used several times."""
    dataset = PackedDataset(index, encode)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    packs = [copy.deepcopy(pack) for pack in loader]  # out of files that it shares with a worker
    for sample in (sample for pack in packs for sample in pack.samples):
        sample["pixel_values"] = sample["pixel_values"].half()
    return packs


def tokens_of(pack: Pack) -> list[Tensor]:
    return [sample["input_ids"] for sample in pack.samples]


class Vocabulary:
    """The ids that occur in some packs, numbered from 0 in ascending order."""

    def __init__(self, packs: list[Pack], encode: ProcessorEncoder) -> None:
        self.ids = torch.unique(torch.cat([ids for pack in packs for ids in tokens_of(pack)]))
        self.image = int(self.number(torch.tensor(encode.media_token_ids["image"])))
        words = [encode.files.tokenizer.decode([i]) for i in self.ids.tolist()]
        self.words = [word.strip() for word in words]

    def __len__(self) -> int:
        return len(self.ids)

    def number(self, ids: Tensor) -> Tensor:
        """`ids` numbered anew; -100 stays."""
        place = torch.searchsorted(self.ids, ids).clamp(max=len(self.ids) - 1)
        if not torch.equal(self.ids[place][ids >= 0], ids[ids >= 0]):
            raise SystemExit("the held-out questions have a word that the others lack")
        return torch.where(ids < 0, ids, place)

    def collate(self, packs: list[Pack], is_packed: bool) -> dict[str, Any]:
        """The model's arguments: a row per pack, or a row per sample."""
        rows = packs if is_packed else [sample for pack in packs for sample in pack.alone()]
        batch = collate(rows, attention="sdpa", pad_token_id=int(self.ids[0]))
        batch["input_ids"] = self.number(batch["input_ids"])
        batch["labels"] = self.number(batch["labels"])
        batch["pixel_values"] = batch["pixel_values"].double()
        return batch


# --- the model ------------------------------------------------------------------------------------


def build_model(vocabulary: Vocabulary) -> Any:
    """A Qwen2.5-VL of 0.4 million parameters."""
    allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    text = {
        "vocab_size": len(vocabulary),
        "hidden_size": HIDDEN,
        "intermediate_size": 3 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "mrope_section": [HIDDEN // 16, HIDDEN // 32, HIDDEN // 32],
        },
        "initializer_range": 0.1,  # 0.02 is for widths of thousands: attention would start flat
        "bos_token_id": None,
        "eos_token_id": None,
    }
    vision = {
        "depth": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_heads": 2,
        "out_hidden_size": HIDDEN,
        "fullatt_block_indexes": [0, 1],
        "initializer_range": 0.1,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=vocabulary.image,
        video_token_id=len(vocabulary),  # there is none
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration._from_config(config, attn_implementation="sdpa")
    # What rounding makes of equal gradients grows with every step. In 32 bits the two runs part
    # after some hundred steps, as any two do that add in another order; in 64 later and less.
    return model.double()


@dataclass
class Predictions:
    """What the model says at the positions that have a label, in the order of the samples.

    Attributes:
        losses: cross-entropy [N].
        labels, argmax: what should follow and what does, int64 [N].
        sample, answer: number of the sample in the batch, and of the answer, int64 [N], from 0.
    """

    losses: Tensor
    labels: Tensor
    argmax: Tensor
    sample: Tensor
    answer: Tensor

    def loss_per_sample(self) -> Tensor:
        """Mean loss of each sample's label tokens."""
        sums = torch.zeros(int(self.sample[-1]) + 1).index_add(
            0, self.sample, self.losses.detach().float()
        )
        return sums / torch.bincount(self.sample)


def predict(model: Any, batch: dict[str, Any]) -> Predictions:
    """Only positions with a label get logits: the others are most of a batch."""
    labels, begins = batch.pop("labels")[:, 1:], batch["position_ids"][0] == 0
    hidden = model.model(**batch).last_hidden_state[:, :-1]
    segment = begins.flatten().cumsum(0).view(begins.shape)[:, 1:]  # samples and padding
    chosen = labels != -100
    logits = model.lm_head(hidden[chosen])
    place = chosen.flatten().nonzero()[:, 0]
    starts_answer = torch.diff(place, prepend=place[:1] - 2) > 1
    return Predictions(
        losses=cross_entropy(logits, labels[chosen], reduction="none"),
        labels=labels[chosen],
        argmax=logits.argmax(dim=-1),
        sample=torch.unique(segment[chosen], return_inverse=True)[1],
        answer=starts_answer.cumsum(0) - 1,
    )


# --- training -------------------------------------------------------------------------------------


@dataclass
class Run:
    """One training: the model, per step the mean loss per sample, and what it took."""

    model: Any
    losses: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # seconds since the start, after each step
    tokens: int = 0
    positions: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.times[-1]

    @property
    def filled(self) -> float:
        """Share of the rows' positions that hold tokens."""
        return self.tokens / self.positions


def schedule(index: Path, steps: int) -> Iterator[list[int]]:
    """Pack ids of each of `steps` optimizer steps, epoch after epoch."""
    sampler, epoch = PackSampler(open_index(index), global_batch=PACKS_PER_STEP), 0
    while steps > 0:
        sampler.set_epoch(epoch)
        for step in range(min(steps, sampler.num_steps)):
            yield sampler.packs_of_step(step)
        steps, epoch = steps - sampler.num_steps, epoch + 1


def train(
    packs: list[Pack], vocabulary: Vocabulary, steps: list[list[int]], *, is_packed: bool
) -> Run:
    """Train a new model on `steps`, lists of pack ids: one row per pack, or one per sample."""
    run, name = Run(build_model(vocabulary)), "packed" if is_packed else "padded"
    optimizer = torch.optim.AdamW(run.model.parameters(), weight_decay=0.01)
    begin = time.perf_counter()
    for step, chosen in enumerate(steps):
        rate = LEARNING_RATE * min((step + 1) / WARM_UP, 1.05 - step / len(steps))
        optimizer.param_groups[0]["lr"] = rate
        batch = vocabulary.collate([packs[k] for k in chosen], is_packed)
        run.positions += batch["input_ids"].numel()
        found = predict(run.model, batch)
        found.losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        run.tokens += sum(len(ids) for k in chosen for ids in tokens_of(packs[k]))
        run.losses.append(float(found.loss_per_sample().mean()))
        run.times.append(time.perf_counter() - begin)
        if step % 100 == 99:
            print(
                f"{name} step {step + 1:5d}  loss per sample {sum(run.losses[-100:]) / 100:.3f}"
                f"  {run.tokens_per_second:7,.0f} tokens/s  {run.times[-1]:5.0f} s",
                flush=True,
            )
    return run


# --- answers --------------------------------------------------------------------------------------


@torch.no_grad()
def answered(model: Any, packs: list[Pack], vocabulary: Vocabulary) -> Counter[str]:
    """Kind of question -> right answers to each sample's first question.

    Later ones do not count: their answer may follow from an earlier one. An answer is right if
    greedy decoding gives all its tokens, the end of the turn included.
    """
    right: Counter[str] = Counter()
    model.eval()
    for begin in range(0, len(packs), 16):
        found = predict(model, vocabulary.collate(packs[begin : begin + 16], is_packed=True))
        is_wrong = (found.argmax != found.labels).float()
        errors = torch.zeros(int(found.answer[-1]) + 1).index_add(0, found.answer, is_wrong)
        firsts = torch.diff(found.sample, prepend=found.sample[:1] - 1).nonzero()[:, 0]
        for first in firsts.tolist():
            word = vocabulary.words[found.labels[first]]
            right[kind_of(word)] += int(errors[found.answer[first]] == 0)
    model.train()
    return right


def print_accuracy(asked: Counter[str], columns: dict[str, Counter[str]]) -> None:
    print(f"\n{'first questions':<16}{'held out':>9}" + "".join(f"{name:>13}" for name in columns))
    for kind in (*KINDS, "all"):
        total = asked[kind] if kind != "all" else asked.total()
        line = f"{kind:<16}{total:>9,}"
        for right in columns.values():
            share = (right[kind] if kind != "all" else right.total()) / max(total, 1)
            line += f"{100 * share:>11.1f} %"
        print(line)


# --- the picture ----------------------------------------------------------------------------------


def draw(runs: dict[str, Run], path: Path) -> None:
    """Loss per sample of both runs, over steps and over time, each a mean of 25 steps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_step, by_time) = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    styles = {"packed": {"lw": 3.5, "color": "tab:orange"}, "padded": {"lw": 1.2, "color": "k"}}
    for name, run in runs.items():
        means = torch.tensor(run.losses).unfold(0, 25, 1).mean(dim=1)
        steps = torch.arange(25, len(run.losses) + 1)
        by_step.plot(steps, means, label=name, **styles[name])
        times = torch.tensor(run.times)[24:]
        label = f"{name}: {run.tokens_per_second:,.0f} tokens/s"
        by_time.plot(times, means, label=label, **styles[name])
    by_step.set(
        xlabel="optimizer step", ylabel="loss per sample", title="The same samples per step"
    )
    by_time.set(xlabel="seconds of training", title="The same samples, packed and padded")
    for axes in (by_step, by_time):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"\npicture: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--corpus", type=Path, default=Path("data/corpus"))
    parser.add_argument("--processor", type=Path, default=Path("data/processors/qwen2.5-vl"))
    parser.add_argument("--out", type=Path, default=Path("data/vqa"), help="questions and plans")
    parser.add_argument("--picture", type=Path, default=Path("data/vqa.png"))
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps of each run")
    args = parser.parse_args()
    begin = time.perf_counter()
    plan(args.corpus, args.processor, args.out)
    encode = ProcessorEncoder(str(args.processor))
    packs, held_out = read(args.out / "train", encode), read(args.out / "holdout", encode)
    vocabulary = Vocabulary(packs, encode)
    print(
        f"{len(packs):,} packs of {CAPACITY} tokens, {len(held_out)} held out;"
        f" {len(vocabulary)} words; {time.perf_counter() - begin:.0f} s to count, plan and read"
    )
    steps = list(schedule(args.out / "train", args.steps))
    runs = {
        "packed": train(packs, vocabulary, steps, is_packed=True),
        "padded": train(packs, vocabulary, steps, is_packed=False),
    }
    asked, blind = guessed(args.out)
    right = {name: answered(run.model, held_out, vocabulary) for name, run in runs.items()}
    print_accuracy(asked, {"not looking": blind, **right})
    packed, padded = runs["packed"], runs["padded"]
    for name, run in runs.items():
        print(f"{name}: {run.tokens_per_second:7,.0f} tokens/s, rows {100 * run.filled:.1f} % full")
    apart = torch.tensor(packed.losses).sub(torch.tensor(padded.losses)).abs()
    print(
        f"packed is {packed.tokens_per_second / padded.tokens_per_second:.1f} times as fast; losses"
        f" per sample differ by {apart[:10].max():.1e} in the first 10 steps, by"
        f" {apart.mean():.1e} on average"
    )
    draw(runs, args.picture)


if __name__ == "__main__":
    main()
