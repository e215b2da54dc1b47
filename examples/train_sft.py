"""Train on packs with TRL's SFTTrainer.

    python examples/train_sft.py --index data/index --processor data/processors/qwen2.5-vl

SFTTrainer takes a `datasets.Dataset` alone: `as_hf_dataset` makes one whose rows are the packs in
the order of training. The settings say that they are neither shuffled, nor prepared, nor packed a
second time. The model is a tiny, randomly initialised Qwen2.5-VL.
"""

from __future__ import annotations

import argparse

import torch

from packidx.encode.imports import allow_cuda_torchvision
from packidx.torch import OrderedPacks, as_hf_dataset, collate, prepare_model
from train_tiny import build_model

allow_cuda_torchvision()  # a CPU build of torch beside PyPI's CUDA build of torchvision
from transformers import AutoTokenizer  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

from packidx.trainers.huggingface import TrainsOnPacks  # noqa: E402


class PackedSFTTrainer(TrainsOnPacks, SFTTrainer):
    """With a mean over the label tokens of a step, and checkpoints that Qwen2.5-VL resumes from."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--index", default="data/index", help="folder of the pack index")
    parser.add_argument("--processor", default="data/processors/qwen2.5-vl", help="its processor")
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps")
    parser.add_argument("--global-batch", type=int, default=2, help="packs per optimizer step")
    parser.add_argument("--output", default="data/run-sft", help="folder of checkpoints")
    parser.add_argument("--resume", action="store_true", help="go on from its last checkpoint")
    args = parser.parse_args()
    settings = SFTConfig(
        args.output,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=args.global_batch,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
        max_steps=args.steps,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=args.steps,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
    )
    packs = OrderedPacks(args.index, args.processor, args.global_batch)
    model = prepare_model(build_model())
    trainer = PackedSFTTrainer(
        model,
        settings,
        data_collator=collate,
        train_dataset=as_hf_dataset(packs),
        processing_class=AutoTokenizer.from_pretrained(args.processor),
    )
    trainer.train(resume_from_checkpoint=args.resume or None)


if __name__ == "__main__":
    main()
