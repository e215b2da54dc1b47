"""Misspelt keywords: the one that may be meant is named, and Python still sees a TypeError."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from packidx import PackidxError, PlanOptions, estimate_lengths, open_index, plan_packs
from packidx.encode import ProcessorEncoder
from packidx.errors import KeywordError
from packidx.torch import PackedDataset, PackSampler, collate

CALLS: list[tuple[Callable[..., Any], str, str]] = [
    (plan_packs, "capacty", "capacity"),
    (plan_packs, "on_lnog", "on_long"),
    (plan_packs, "worker", "workers"),
    (estimate_lengths, "procesor", "processor"),
    (PlanOptions, "strategie", "strategy"),
    (PackedDataset, "on_mismach", "on_mismatch"),
    (PackSampler, "worldsize", "world_size"),
    (collate, "attn", "attention"),
    (ProcessorEncoder, "setting", "settings"),
    (open_index, "root", "roots"),
]


@pytest.mark.parametrize(("call", "given", "meant"), CALLS)
def test_the_near_one_is_named(call: Callable[..., Any], given: str, meant: str) -> None:
    with pytest.raises(TypeError) as caught:
        call(**{given: 1})
    assert isinstance(caught.value, PackidxError)
    assert str(caught.value) == f"{call.__qualname__}() has no argument {given!r}: " + (
        f"did you mean {meant!r}?"
    )


def test_where_none_is_near_all_are_listed() -> None:
    with pytest.raises(KeywordError, match=r"open_index\(\) has no argument 'zzz': it has path, r"):
        open_index("nowhere", zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "call", dict.fromkeys(call for call, _, _ in CALLS), ids=lambda call: call.__qualname__
)
def test_signatures_and_docs_stay(call: Callable[..., Any]) -> None:
    assert len(inspect.signature(call).parameters) > 1 and call.__doc__
    assert pickle.loads(pickle.dumps(call)) is call


def test_other_errors_of_types_are_pythons_own() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        PackedDataset("index")  # type: ignore[call-arg]


def test_nothing_is_imported_for_it() -> None:
    code = "import sys, packidx.keywords; print({'difflib', 'inspect', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
