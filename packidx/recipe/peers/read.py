"""A recipe of another trainer's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from packidx.errors import OptionError
from packidx.plan.options.config import load_config, read_what_can_be
from packidx.plan.options.trainers.recognise import TRAINERS, recognise
from packidx.recipe.peers.axolotl import AXOLOTL
from packidx.recipe.peers.draft import Draft, value_at
from packidx.recipe.peers.llamafactory import LLAMAFACTORY
from packidx.recipe.peers.lmms import LMMS
from packidx.recipe.peers.loongforge import LOONGFORGE
from packidx.recipe.peers.metas import INTERNVL, LIST, META, meta_of, read_meta
from packidx.recipe.peers.nemo import NEMO
from packidx.recipe.peers.peer import Peer
from packidx.recipe.peers.swift import SWIFT
from packidx.recipe.peers.trl import TRL
from packidx.recipe.recipe import TODO, as_yaml, is_recipe, written_sources

PEERS = {
    peer.name: peer for peer in (NEMO, LMMS, LOONGFORGE, AXOLOTL, LLAMAFACTORY, SWIFT, TRL)
} | {INTERNVL.name: INTERNVL}
"""By the names of ``--config-format``."""

OUTPUT = "packs"


@dataclass(frozen=True)
class Imported:
    """A recipe that was made of another trainer's file.

    Attributes:
        title: whose it was.
        text: the recipe as YAML, with what it does not say as comments at its top.
        lost: sentences, one for each thing that the recipe does not say.
        todo: dotted names of what is still to be filled in.
    """

    title: str
    text: str
    lost: tuple[str, ...]
    todo: tuple[str, ...]


def imported(path: str, named: str | None = None) -> Imported:
    """The recipe that the file at `path` comes to.

    Args:
        named: the trainer whose file it is, where its keys do not say.

    Raises:
        OptionError: it cannot be read, nobody's keys are in it, or it is a recipe already.
    """
    file = load_config(path)
    if is_recipe(file):
        raise OptionError(f"{path} is a recipe already: packidx pack {path}")
    peer = _whose(path, file, named)
    draft = Draft(path, file)
    if peer in (INTERNVL, META, LIST):
        read_meta(draft, peer)
    else:
        _read(draft, peer)
    recipe = _recipe(draft)
    todo = tuple(_todo(recipe))
    return Imported(peer.title, _text(draft, peer, recipe), tuple(draft.lost), todo)


def _whose(path: str, file: Mapping[str, Any], named: str | None) -> Peer:
    if named is not None:
        if named not in PEERS:
            raise OptionError(f"config-format {named!r}: choose one of {', '.join(PEERS)}")
        return PEERS[named]
    meta = meta_of(file)
    if meta is not None:
        return meta
    told = {name for name, trainer in TRAINERS.items() if trainer.tells(file)}
    if len(told) == 1:
        return PEERS[told.pop()]
    known = {name: len(peer.known_in(file)) for name, peer in PEERS.items()}
    best = [name for name in known if known[name] == max(known.values())]
    if len(best) == 1 and (not told or best[0] in told):
        return PEERS[best[0]]
    trainer = recognise(path, file, None)  # which says what to do where it may be several's
    if trainer is not None:
        return PEERS[trainer.name]
    if any(known.values()):
        titles = ", ".join(PEERS[name].title for name in best)
        raise OptionError(
            f"{path} may be of {titles}: say whose it is, --config-format {'|'.join(best)}"
        )
    raise OptionError(
        f"{path} has no key of a trainer that packidx knows: "
        + ", ".join(peer.title for peer in PEERS.values())
    )


def _read(draft: Draft, peer: Peer) -> None:
    for name, take in peer.keys.items():
        value = value_at(draft.file, name)
        if value is not None:
            take(draft, name, value)
    if peer.trainer is not None:
        refused: list[str] = []
        options, notes = read_what_can_be(draft.path, draft.file, peer.trainer, refused)
        mix = draft.plan.get("mix")
        draft.plan = {**options, **({"mix": mix} if mix else {})}
        at = f"{draft.path}: "
        taken = tuple(f"{at}{name} " for name in peer.keys)
        draft.lost += [sentence.removeprefix(at) for sentence in refused]
        draft.notes += [note.removeprefix(at) for note in notes if not note.startswith(taken)]


def _recipe(draft: Draft) -> dict[str, Any]:
    plan = {name: list(v) if isinstance(v, tuple) else v for name, v in draft.plan.items()}
    capacity = plan.pop("capacity", f"{TODO} tokens of a pack")
    if not draft.sources:
        draft.add_todo("a file, glob or folder")
    processor = draft.estimate.pop("processor", f"{TODO} folder or hub name of the processor")
    return {
        "sources": written_sources(tuple(draft.sources)),
        "estimate": {"processor": processor, **draft.estimate},
        "plan": {"capacity": capacity, **plan},
        "output": OUTPUT,
    }


def _todo(value: Any, at: str = "") -> list[str]:
    if isinstance(value, dict):
        return [
            name
            for key, member in value.items()
            for name in _todo(member, f"{at}.{key}" if at else str(key))
        ]
    if isinstance(value, list):
        return [name for member in value for name in _todo(member, at)]
    return [at] if isinstance(value, str) and value.startswith(TODO) else []


def _text(draft: Draft, peer: Peer, recipe: Mapping[str, Any]) -> str:
    others = peer.others_in(draft.file) if peer.keys else []
    parts = {
        "What this recipe does not say:": draft.lost,
        "To be known:": draft.notes,
        "The training's own business:": [", ".join(others)] if others else [],
    }
    lines = [
        f"Made of {draft.path}, which is {peer.title}'s." if peer.keys else f"Of {draft.path}."
    ]
    for title, sentences in parts.items():
        if sentences:
            lines += ["", title, *(f"- {sentence}" for sentence in sentences)]
    return "".join(f"{f'# {_visible(line)}'.rstrip()}\n" for line in lines) + as_yaml(recipe)


def _visible(text: str) -> str:
    """What a comment of YAML may hold."""
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )
