"""NeMo Automodel."""

from __future__ import annotations

from typing import Any

from packidx.errors import SourceError
from packidx.plan.options.trainers.nemo import NEMO as KEYS_OF_PACKS
from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.peer import (
    OF_EVALUATION,
    Peer,
    Take,
    lost,
    read_before,
    setting,
    take_processor,
)
from packidx.recipe.peers.places import places_of
from packidx.recipe.recipe import TODO
from packidx.records.layout import Layout
from packidx.records.sources.mix_entries import DataSet
from packidx.records.sources.mixes import data_sets, load_mix

_BOTH = "the processor has it for videos, too: add videos.* where you have them"
_META = "make_meta_dataset"
_COLUMNS = {
    "make_medpix_dataset": {"images": "image_id", "prompt": "question", "response": "answer"},
}
"""Functions that only name columns; others write conversations by code."""


def _dataset(draft: Draft, name: str, value: Any) -> None:
    maker = str(draft.at("dataset._target_") or "").rpartition(".")[2]
    if maker == _META:
        _add_meta(draft, str(value), draft.at("dataset.dataset_names"))
        return
    if not isinstance(value, str) or not value:
        draft.lose(name, value, "it is no path and no name of a data set")
        draft.add_todo("the data")
        return
    entry = {"path": value, "split": draft.at("dataset.split")}
    layout = Layout(_COLUMNS.get(maker, {}))
    draft.add(DataSet(None, places_of(draft, "dataset", entry), layout))
    if maker and maker not in _COLUMNS:
        draft.lose(
            "dataset._target_", maker, "it makes conversations by code: write them as a transform"
        )
        draft.estimate["transform"] = f"{TODO} MODULE:NAME, which does what {maker} does"


def _add_meta(draft: Draft, path: str, names: Any) -> None:
    wanted = [names] if isinstance(names, str) else list(names or ())
    try:
        mix = load_mix(path)
        if mix is None:
            raise SourceError(f"{path} names no data sets by file_name")
        found = data_sets(path, mix, wanted)
    except SourceError as error:
        draft.lost.append(str(error))
        draft.add_todo(f"the data of {path}")
        return
    for data_set in found:
        draft.add(data_set)


def _maker(draft: Draft, name: str, value: Any) -> None:
    """Read with the path; of data that has none, all there is to know."""
    if not draft.at("dataset.path_or_dataset"):
        draft.lose(name, value, "it has no path_or_dataset")
        draft.add_todo(f"the data that {str(value).rpartition('.')[2]} makes")


def _limit(draft: Draft, name: str, value: Any) -> None:
    draft.lose(name, value, "all samples are taken; plan.max_packs takes less")


_KEYS: dict[str, Take] = {
    "processor.pretrained_model_name_or_path": take_processor,
    "model.pretrained_model_name_or_path": take_processor,
    "processor.max_pixels": setting("images.max_pixels", _BOTH),
    "processor.min_pixels": setting("images.min_pixels", _BOTH),
    "processor._target_": lost(
        "estimate.processor is loaded as AutoProcessor does",
        "transformers.AutoProcessor.from_pretrained",
    ),
    "dataset._target_": _maker,
    "dataset.split": read_before,
    "dataset.dataset_names": read_before,
    "dataset.path_or_dataset": _dataset,
    "dataset.num_samples_limit": _limit,
    "dataset.limit_dataset_samples": _limit,
    "validation_dataset": lost(OF_EVALUATION),
    "validation_datasets": lost(OF_EVALUATION),
}

NEMO = Peer("nemo", "NeMo Automodel", _KEYS, KEYS_OF_PACKS)
