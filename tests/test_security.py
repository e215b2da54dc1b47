"""SECURITY.md names tests that exist, and says how to report."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "SECURITY.md").read_text()
NAMED = re.findall(r"^- `(tests/[\w/]+\.py)::(\w+)`$", TEXT, re.MULTILINE)


def threats() -> dict[str, str]:
    """Each paragraph of the threats, by its first words."""
    body = TEXT.partition("## Threats and what holds")[2].partition("\n## ")[0]
    parts = re.split(r"^\*\*(.+?)\*\*", body, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_every_named_test_exists() -> None:
    assert len(NAMED) > 30
    for path, name in NAMED:
        tree = ast.parse((ROOT / path).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path}::{name}"


def test_every_threat_has_a_test() -> None:
    assert len(threats()) > 12
    for title, text in threats().items():
        assert "\n- `tests/" in text, title
    assert len(NAMED) == sum(text.count("\n- `tests/") for text in threats().values())


def test_it_says_how_to_report_and_names_no_address() -> None:
    assert "security advisories" in TEXT
    assert "@" not in TEXT
