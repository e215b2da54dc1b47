"""A recipe in the making: what was found in another trainer's file, and what was not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from packidx.recipe.recipe import TODO
from packidx.records.layout import Layout
from packidx.records.sources import hub
from packidx.records.sources.mix_entries import DataSet

_UNNAMED = re.compile(r"[^\w.+-]+")
_SUFFIX = re.compile(r"(\.[A-Za-z]\w{1,7}){1,2}$")


@dataclass
class Draft:
    """What a file comes to so far.

    Attributes:
        path: of the file.
        file: what it says.
        sources: data sets; a location that begins with ``TODO`` is to be filled in.
        estimate, plan: sections of the recipe.
        lost: sentences, one for each thing that the recipe does not say.
        notes: sentences, one for each thing that is to be known of what it says.
    """

    path: str
    file: Mapping[str, Any]
    sources: list[DataSet] = field(default_factory=list)
    estimate: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lose(self, name: str, value: Any, why: str) -> None:
        """Tell that a key is not translated."""
        self.lost.append(f"{name} is {value!r:.120}: {why}")

    def add(self, data_set: DataSet) -> None:
        """Add a source, by its name or one made of its place, which no other has.

        How often it is seen is said by the plan.
        """
        if not all(data_set.locations):
            data_set = replace(data_set, locations=(f"{TODO} the path of this data",))
        layout, name = data_set.layout, data_set.name or _name_of(data_set.locations[0])
        taken = {each.name for each in self.sources}
        if name in taken:
            number = next(n for n in range(2, len(taken) + 3) if f"{name}-{n}" not in taken)
            name = f"{name}-{number}"
        if layout.sample_ratio != 1:
            self.plan.setdefault("mix", {})[name] = layout.sample_ratio
        self.sources.append(replace(data_set, name=name, layout=replace(layout, sample_ratio=1.0)))

    def add_place(self, place: str, name: str | None = None, layout: Layout | None = None) -> None:
        """Add a source that is one file, folder or data set of the Hub."""
        self.add(DataSet(name, (place,), layout or Layout()))

    def add_todo(self, what: str, name: str | None = None) -> None:
        """Add a source whose place somebody has yet to fill in."""
        self.add(DataSet(name or "data", (f"{TODO} {what}",), Layout()))

    def at(self, dotted: str) -> Any:
        """The value of a key, None where there is none."""
        return value_at(self.file, dotted)


def value_at(file: Mapping[str, Any], dotted: str) -> Any:
    """The value at ``section.key``, None where there is none."""
    value: Any = file
    for name in dotted.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _name_of(place: str) -> str:
    of_hub = hub.named(place) if place.startswith(hub.SCHEME) else None
    last = (of_hub.repo if of_hub else place.rstrip("/")).rpartition("/")[2]
    return _UNNAMED.sub("-", _SUFFIX.sub("", last)).strip("-") or "data"
