"""LoongForge: the configuration of its offline packing."""

from __future__ import annotations

from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.trainers.key import (
    OF_NO_PLAN,
    Given,
    Key,
    Meaning,
    Word,
    ignored,
    packer,
    refused,
    whole,
    words,
)
from packidx.plan.options.trainers.trainer import Trainer

_BY_MEDIA = Word(
    {"group_by": "media_type"}, "texts, images and videos are packed apart; `packidx export wds`"
)
_EXPORTED = Word(note="`packidx export wds` writes LoongForge's packed samples")


def _max_tokens(where: str, value: Any, given: Given) -> Meaning:
    return Meaning({"capacity": whole(where, value), "on_long": "drop"})


def _tar(flag: str) -> Key:
    def read(where: str, value: Any, given: Given) -> Meaning:
        return Meaning(note=f"{OF_NO_PLAN}: packidx export wds {flag} {whole(where, value)}")

    return Key(f"{OF_NO_PLAN}: `packidx export wds {flag}`", read)


def _max_shards(where: str, value: Any, given: Given) -> Meaning:
    if whole(where, value):
        raise OptionError(
            f"{where} is {value}, for a trial: a plan takes every sample of its lengths; estimate "
            "only those shards, and leave it out"
        )
    return Meaning()


_KEYS = {
    "sample.max_token_len": Key("`--capacity`, `--on-long drop`", _max_tokens),
    "sample.sample_type": words(
        {
            "packed_multi_mix_qa": _BY_MEDIA,
            "packed_chat_mix": _BY_MEDIA,
            "packed_captioning": _EXPORTED,
            "packed_vqa": _EXPORTED,
            "packed_multi_vid_qa": _EXPORTED,
        }
    ),
    "sample.task_type": ignored("packidx reads each record's own layout"),
    "packing.algorithm": words(
        {
            "best_fit_decreasing": packer("packs the longest first, where it fits best", "bfd"),
            "hashbucket": packer("looks for exact fits and drops what fills none", None),
        }
    ),
    "packing.validate_pack_plan": ignored("`packidx verify` checks an index"),
    "packed_wds.maxcount": _tar("--max-count"),
    "packed_wds.maxsize": _tar("--max-size"),
    "packed_wds.media": ignored("packidx export wds writes what each sample has"),
    "packed_wds.mode": refused("packidx export wds writes packs only", "caption_pack"),
    "packed_wds.json_dir": ignored("there are no files between"),
    "packed_wds.image_dir": ignored("media are read from where they lie; estimate --media-root"),
    "packed_wds.video_dir": ignored("media are read from where they lie; estimate --media-root"),
    "process.max_shards": Key("refused but for `0`: estimate only those shards", _max_shards),
}

LOONGFORGE = Trainer(
    name="loongforge",
    title="LoongForge",
    release="of 2026",
    telling=frozenset({"sample", "packed_wds", "media_preprocess"}),
    keys=_KEYS,
    sections=("sample", "packing", "packed_wds", "process"),
    closed=("sample", "packing", "packed_wds"),
)
