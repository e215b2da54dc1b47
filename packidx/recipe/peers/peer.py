"""A trainer whose files become recipes, and what becomes of a key of its files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packidx.plan.options.trainers.trainer import Trainer
from packidx.recipe.peers.draft import Draft

Take = Callable[[Draft, str, Any], None]
"""``take(draft, name, value)``: put what a key says into the draft."""

OF_TEMPLATE = (
    "a template of the trainer's own; here lengths and training have the chat template of the "
    "processor's folder, so compare the two"
)
OF_EVALUATION = "it is about evaluation: pack that by a recipe of its own"


@dataclass(frozen=True)
class Peer:
    """A trainer.

    Attributes:
        name: of ``--config-format``.
        title: what people call it.
        keys: dotted names of keys about models and data → what becomes of each, in the order in
            which they are read.
        trainer: its keys about packs; None where it has none.
    """

    name: str
    title: str
    keys: Mapping[str, Take]
    trainer: Trainer | None = None

    def known_in(self, file: Mapping[Any, Any]) -> list[str]:
        """The dotted names of `file` that have a place in `keys`, in the order of the file."""
        return [name for name in leaves(file, self.keys) if name in self.keys]

    def others_in(self, file: Mapping[Any, Any]) -> list[str]:
        """Those that no table knows."""
        known = {**self.keys, **(self.trainer.keys if self.trainer else {})}
        return [name for name in leaves(file, known) if name not in known and name != "packidx"]


def leaves(file: Mapping[Any, Any], known: Mapping[str, Any], inside: str = "") -> Iterator[str]:
    """Dotted names: of sections that have a known key their members, else the sections."""
    for key, value in file.items():
        name = f"{inside}{key}"
        is_section = isinstance(value, dict) and any(k.startswith(f"{name}.") for k in known)
        if is_section and name not in known:
            yield from leaves(value, known, f"{name}.")
        elif value is not None:
            yield name


def take_processor(draft: Draft, name: str, value: Any) -> None:
    """The folder or name of a processor, or of a model that has one."""
    if not isinstance(value, str) or not value:
        if value not in ("", None):
            draft.lose(name, value, "it is no name of a processor")
        return
    first = draft.estimate.setdefault("processor", value)
    if first != value:
        draft.notes.append(f"{name} is {value!r}, and the processor's own name is taken: {first}")


def setting(member: str, note: str | None = None) -> Take:
    """A setting of the processor, such as ``images.max_pixels``."""

    def take(draft: Draft, name: str, value: Any) -> None:
        if type(value) not in (int, float):
            draft.lose(name, value, f"{member} takes a number")
            return
        draft.estimate.setdefault("processor_settings", {})[member] = value
        if note is not None:
            draft.notes.append(f"{name}: {note}")

    return take


def lost(why: str, *harmless: Any) -> Take:
    """What a recipe has no word for, unless its value is one of `harmless`."""

    def take(draft: Draft, name: str, value: Any) -> None:
        if not any(value is each or value == each for each in harmless):
            draft.lose(name, value, why)

    return take


def read_before(draft: Draft, name: str, value: Any) -> None:
    """A key that another one's `Take` looks at."""


def object_in(value: Any) -> dict[str, Any] | None:
    """An object, or one that is written as JSON text; None where it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None
