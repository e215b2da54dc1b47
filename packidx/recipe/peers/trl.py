"""TRL."""

from __future__ import annotations

from typing import Any

from packidx.plan.options.trainers.trl import TRL as KEYS_OF_PACKS
from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.peer import (
    OF_EVALUATION,
    OF_TEMPLATE,
    Peer,
    Take,
    lost,
    read_before,
    take_processor,
)
from packidx.recipe.peers.places import places_of
from packidx.records.layout import Layout
from packidx.records.sources.mix_entries import DataSet

_PLACE = ("path", "name", "data_dir", "data_files", "split")


def _model(draft: Draft, name: str, value: Any) -> None:
    take_processor(draft, name, value)
    if draft.at("assistant_only_loss") is None:
        draft.lost.append(
            "assistant_only_loss is not given: TRL trains every turn of a conversation then; here "
            "assistants' turns alone are trained"
        )


def _dataset(draft: Draft, name: str, value: Any) -> None:
    if draft.at("datasets"):
        draft.notes.append(f"{name}: TRL takes datasets instead, and so does this recipe")
        return
    entry = {
        "path": value,
        "name": draft.at("dataset_config"),
        "split": draft.at("dataset_train_split"),
    }
    draft.add(DataSet(None, places_of(draft, name, entry), _layout(draft)))


def _datasets(draft: Draft, name: str, value: Any) -> None:
    for number, entry in enumerate(value if isinstance(value, list) else [value]):
        where = f"{name}[{number}]"
        if not isinstance(entry, dict) or not entry.get("path"):
            draft.lose(where, entry, "it has no path")
            draft.add_todo(f"the data of {where}")
            continue
        for key in entry.keys() - {*_PLACE, "columns"}:
            draft.lose(f"{where}.{key}", entry[key], "a recipe has no word for it")
        draft.add(DataSet(None, places_of(draft, where, entry), _layout(draft)))


def _layout(draft: Draft) -> Layout:
    field = draft.at("dataset_text_field")
    return Layout({} if field in (None, "text") else {"text": str(field)})


def _loss(draft: Draft, name: str, value: Any) -> None:
    if value is not True:
        draft.lose(name, value, "assistants' turns alone are trained here, and every answer")


_KEYS: dict[str, Take] = {
    "model_name_or_path": _model,
    "dataset_text_field": read_before,
    "dataset_config": read_before,
    "dataset_train_split": read_before,
    "datasets": _datasets,
    "dataset_name": _dataset,
    "assistant_only_loss": _loss,
    "dataset_test_split": lost(OF_EVALUATION),
    "test_split_size": lost("plan.holdout keeps a share for evaluation"),
    "chat_template_path": lost(OF_TEMPLATE),
    "eos_token": lost("the processor's folder has the tokenizer that is counted with"),
}

TRL = Peer("trl", "TRL", _KEYS, KEYS_OF_PACKS)
