"""Packers of other projects, cut out of their files: nothing of those is imported."""

from __future__ import annotations

import ast
import heapq
import logging
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, files

import pytest


def nemo_knapsack() -> Callable[[list[int], int], list[list[int]]]:
    """NeMo Automodel's function alone: its module imports torch and datasets."""
    name = "nemo_automodel/components/datasets/llm/neat_packing.py"
    try:
        found = [path for path in files("nemo-automodel") or [] if str(path) == name]
    except PackageNotFoundError:
        found = []
    if not found:
        pytest.skip("nemo-automodel is not installed")
    tree = ast.parse(found[0].read_text())
    tree.body = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "greedy_knapsack"
    ]
    space = {"heapq": heapq, "time": time, "logger": logging.getLogger(__name__)}
    exec(compile(tree, name, "exec"), space)
    return space["greedy_knapsack"]  # type: ignore[return-value]
