"""Whether the encoder and the transform of a plan are here: loaded, and compared by fingerprint.

No code is run because a manifest names it: what the user wrote is loaded where the user names it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from typing import Any

from packidx.format.manifest import Encoder
from packidx.index import Index
from packidx.inspect.doctor.finding import Finding, Given, State
from packidx.inspect.doctor.machine import Environment

_SHOWN = 12  # digits of a fingerprint


@dataclass(frozen=True, slots=True)
class Chosen:
    """The encoder to build packs with, as far as there is one."""

    finding: Finding
    processor: str | None = None
    """Its folder or name, of a processor."""
    labels: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    encode: Any = None
    """The user's own."""

    @property
    def can_build(self) -> bool:
        """Whether it is here, and nothing is known to be wrong with it."""
        is_here = self.processor is not None or self.encode is not None
        return is_here and self.finding.state != "problem"


def choose(index: Index, given: Given, environment: Environment) -> Chosen:
    """The encoder that the user names, else the processor that the manifest names, if it is here.

    Raises:
        PackidxError: it cannot be loaded.
    """
    stated = index.snapshot.lengths.encoder
    if given.encode is not None:
        return _own(given.encode, stated)
    if not index.snapshot.shards and given.processor is None:
        return Chosen(Finding("encoder", "ok", "none: planned from bare lengths"))
    if stated is None and given.processor is None:
        detail = "the manifest names none: lengths were guessed, or taken as they were given"
        return Chosen(_unknown(detail, "give --processor or --encode to build packs with"))
    name = stated.name if stated is not None and given.processor is None else None
    if name is not None and ":" in name and not os.path.isdir(index.resolve(name)):
        do = f"give --encode {name} to load and compare it"
        return Chosen(_unknown(_not_loaded(name, name), do))
    return _processor(index, given, stated, environment)


def _processor(
    index: Index, given: Given, stated: Encoder | None, environment: Environment
) -> Chosen:
    from packidx.encode.loading import load_processor
    from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy

    stated = stated or Encoder(fingerprint=None, name=None)
    name, labels = stated.name, stated.labels
    folder = given.processor or _folder_of(index, name)
    settings = given.settings or stated.overrides or {}
    if folder is None:
        detail = f"the processor {name} is not here" if name else "the manifest names no processor"
        do = "give --processor DIR_OR_NAME, or --root OLD=NEW where its folder was moved"
        return Chosen(_unknown(f"{detail}: fingerprint not compared, packs not built", do))
    policy = DEFAULT_POLICY if labels is None else LabelPolicy.parse(labels)
    files = load_processor(folder, policy, settings, given.trusts_code)
    of = "text alone" if files.image_settings is None else f"family {files.family or 'unknown'}"
    said = f"{given.processor or name} ({of}{'' if labels is None else f', labels {labels}'})"
    finding = _compared(said, files.fingerprint(), stated, files.settings)
    if finding.state == "ok" and stated.fingerprint is not None:
        package = environment.package("transformers")
        here = package.version if package is not None else None
        finding = _with_release(finding, stated.compared or {}, here)
        if files.image_settings is None:  # no release of transformers makes pixels of text
            finding = replace(finding, state="ok", do=None)
        elif finding.state == "unknown":
            verify = f"packidx verify {index.path} --processor {folder} --sample 200"
            finding = replace(finding, do=f"estimate again here, or encode some: `{verify}`")
    return Chosen(finding, processor=folder, labels=labels, settings=settings)


def _with_release(finding: Finding, compared: Mapping[str, Any], here: str | None) -> Finding:
    """`finding`, and whether the lengths are those of `here`, the installed transformers."""
    release, reason = compared.get("with"), compared.get("reason")
    known = False
    if release is None:
        said = "lengths were not compared with the real processor"
        said += f" ({reason})" if reason else ""
    elif compared.get("unequal"):
        said = f"lengths were found to differ from {release}"
    elif release == f"transformers {here}":
        said, known = f"lengths were compared with {release}", True
    else:
        # Which releases make the same pixels, nobody knows: any other one is to be tried.
        said = f"lengths were compared with {release}, and {here or 'none'} is installed here"
    state: State = "ok" if known else "unknown"
    return replace(finding, state=state, detail=f"{finding.detail}; {said}")


def _folder_of(index: Index, name: str | None) -> str | None:
    """The folder of a processor that a manifest names, if it is on this machine."""
    if name is None:
        return None
    folder = index.resolve(name)
    if os.path.isdir(folder):
        return folder
    try:  # a model's files, as they were fetched once; nothing is fetched now
        from huggingface_hub import snapshot_download

        from packidx.processor.folder import PATTERNS

        snapshot: str = snapshot_download(name, allow_patterns=PATTERNS, local_files_only=True)
    except Exception:  # whatever the library raises for what is no model's name
        return None
    return snapshot if os.path.isdir(snapshot) else None


def _own(spec: str, stated: Encoder | None) -> Chosen:
    from packidx.user_code import fingerprint_of, load_named

    encode = load_named(spec, "--encode")
    mine = fingerprint_of(encode)
    if mine is None:
        detail = f"{spec}: it has no fingerprint, so nobody can tell whether it is the planned one"
        return Chosen(Finding("encoder", "ok", detail), encode=encode)
    return Chosen(_compared(spec, mine, stated), encode=encode)


def _compared(
    said: str, mine: str, stated: Encoder | None, settings: Mapping[str, Any] | None = None
) -> Finding:
    planned = None if stated is None else stated.fingerprint
    if stated is None or planned is None:
        return Finding("encoder", "ok", f"{said}: the plan has no fingerprint to compare with")
    if mine == planned:
        return Finding("encoder", "ok", f"{said}: fingerprint {mine[:_SHOWN]} as planned")
    detail = (
        f"{said} has fingerprint {mine[:_SHOWN]}, the lengths were counted with one of "
        f"{planned[:_SHOWN]}"
    )
    if differences := stated.differences(settings or stated.settings or {}):
        detail += f" ({', '.join(differences)})"
    do = "use the processor and label policy of the plan, or estimate and plan again"
    return Finding("encoder", "problem", detail, do)


def check_transform(index: Index, given: str | None) -> Finding:
    """The plan's transform.

    Raises:
        PackidxError: what the user names cannot be loaded, or is another one.
    """
    stated = index.snapshot.lengths.transform
    if stated is not None and given is None:
        detail = _not_loaded(stated.name, f"{stated.name} (seed {stated.seed})")
        return Finding("transform", "unknown", detail, f"give --transform {stated.name}")
    from packidx.user_code import planned_transform

    transform = planned_transform(stated, given, index.path)
    if transform is None:
        return Finding("transform", "ok", "none was used")
    detail = f"{transform.name}: fingerprint {transform.fingerprint[:_SHOWN]} as planned"
    return Finding("transform", "ok", detail)


def _not_loaded(spec: str, shown: str) -> str:
    """That the user's ``module:NAME`` was not loaded, and whether there is such a module."""
    top = spec.partition(":")[0].partition(".")[0]
    found = None
    with suppress(Exception):  # a name that is none
        found = PathFinder.find_spec(top, [os.getcwd(), *sys.path])
    where = ", whose module is not found here" if found is None else ""
    return f"your own {shown}{where}: not loaded, since only the manifest names it"


def _unknown(detail: str, do: str) -> Finding:
    return Finding("encoder", "unknown", detail, do)
