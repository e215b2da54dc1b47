"""axolotl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packidx.plan.options.trainers.axolotl import AXOLOTL as KEYS_OF_PACKS
from packidx.recipe.peers.draft import Draft
from packidx.recipe.peers.peer import OF_EVALUATION, OF_TEMPLATE, Peer, Take, lost, take_processor
from packidx.recipe.peers.places import places_of
from packidx.records.layout import Layout
from packidx.records.sources.mix_entries import DataSet

_PLACE = ("path", "name", "split", "revision", "data_files", "trust_remote_code")
_COLUMNS = {
    "field_messages": ("messages", "messages"),
    "field_tools": ("tools", "tools"),
    "field": ("text", "text"),
}  # key → the column that it names, and the name it has by default
_FIELDS = {
    "field_system": "system",
    "field_instruction": "prompt",
    "field_input": "query",
    "field_output": "response",
}  # of a `type` that is an object
_TAGS = {
    "message_field_role": ("role_tag", "role"),
    "message_field_content": ("content_tag", "content"),
    "message_property_mappings.role": ("role_tag", "role"),
    "message_property_mappings.content": ("content_tag", "content"),
}
_TYPES = ("chat_template", "sharegpt", "alpaca", "completion", None)
_ROLES = {"user": "user_tag", "assistant": "assistant_tag", "system": "system_tag"}
_ROLES["tool"] = "observation_tag"
_KNOWN_WORDS = ("human", "user", "gpt", "assistant", "system", "tool")


def _datasets(draft: Draft, name: str, value: Any) -> None:
    entries = value if isinstance(value, list) else [value]
    for number, entry in enumerate(entries):
        where = f"{name}[{number}]"
        if isinstance(entry, dict) and entry.get("path"):
            draft.add(_data_set(draft, where, entry))
        else:
            draft.lose(where, entry, "it has no path")
            draft.add_todo(f"the data of {where}")


def _data_set(draft: Draft, where: str, entry: Mapping[str, Any]) -> DataSet:
    columns: dict[str, str] = {}
    tags: dict[str, str] = {}
    flat = dict(entry)
    for key in ("message_property_mappings", "type"):
        if isinstance(flat.get(key), dict):
            flat |= {f"{key}.{member}": of for member, of in flat.pop(key).items()}
    for key, value in flat.items():
        member = key.removeprefix("type.")
        if key in _PLACE or value in (None, ""):
            continue
        if not isinstance(value, str) and (key in _COLUMNS or key in _TAGS or member in _FIELDS):
            draft.lose(f"{where}.{key}", value, "it is no name")
        elif key == "roles" and isinstance(value, dict):
            _roles(draft, f"{where}.roles", value, tags)
        elif key in _COLUMNS or (member in _FIELDS and key != member):
            standard, default = _COLUMNS.get(key) or (_FIELDS[member], None)
            if value != default:
                columns[standard] = value
        elif key in _TAGS:
            tag, default = _TAGS[key]
            if value != default:
                tags[tag] = value
        elif key == "ds_type":
            _ds_type(draft, where, entry, value)
        elif key == "chat_template" and value == "tokenizer_default":
            continue
        elif key != "type" or str(value).partition(".")[0] not in _TYPES:
            draft.lose(f"{where}.{key}", value, _WHY.get(key, "a recipe has no word for it"))
    return DataSet(None, places_of(draft, where, entry), Layout(columns, tags))


_WHY = {
    "chat_template": OF_TEMPLATE,
    "chat_template_jinja": OF_TEMPLATE,
    "type": "packidx reads each record's own layout; write another as estimate.transform",
    "type.format": "write it as estimate.transform",
    "roles_to_train": "assistants' turns are trained; estimate.labels says more",
    "train_on_eos": "the token that ends a trained turn is trained, or estimate.labels: no-eot",
    "message_field_training": "a turn's own flag is read from `train`, `weight` or `loss`",
}


def _roles(draft: Draft, where: str, roles: Mapping[str, Any], tags: dict[str, str]) -> None:
    for role, given in roles.items():
        words = [given] if isinstance(given, str) else list(given)
        own = [word for word in words if word not in _KNOWN_WORDS]
        if len(own) == 1 and role in _ROLES:
            tags[_ROLES[role]] = own[0]
        elif own:
            draft.lose(f"{where}.{role}", given, "a role has one word of its own, tags: in sources")


def _ds_type(draft: Draft, where: str, entry: Mapping[str, Any], value: Any) -> None:
    if not str(entry["path"]).lower().endswith((".json", ".jsonl", ".csv", ".parquet", ".arrow")):
        draft.lose(f"{where}.ds_type", value, "what a file holds is told by the end of its name")


def _on_inputs(draft: Draft, name: str, value: Any) -> None:
    if value:
        draft.lose(name, value, "prompts are never trained here; a --transform may turn them")


_KEYS: dict[str, Take] = {
    "processor_config": take_processor,
    "base_model": take_processor,
    "base_model_config": take_processor,
    "datasets": _datasets,
    "test_datasets": lost(OF_EVALUATION, []),
    "chat_template": lost(OF_TEMPLATE, "tokenizer_default"),
    "chat_template_jinja": lost(OF_TEMPLATE),
    "train_on_inputs": _on_inputs,
    "roles_to_train": lost(_WHY["roles_to_train"], ["assistant"]),
    "image_size": lost("axolotl scales images itself; say it in the processor's settings"),
    "image_resize_algorithm": lost("axolotl scales images itself; the processor does here"),
    "tokenizer_config": lost("the processor's folder has the tokenizer that is counted with"),
    "special_tokens": lost("put them into the processor's folder, before it is counted"),
    "added_tokens_overrides": lost("put them into the processor's folder, before it is counted"),
    "tokens": lost("put them into the processor's folder, before it is counted"),
}

AXOLOTL = Peer("axolotl", "axolotl", _KEYS, KEYS_OF_PACKS)
