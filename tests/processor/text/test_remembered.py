"""What is kept of a tokenizer in the cache: the same as without it, damaged or not."""

from __future__ import annotations

from pathlib import Path

import pytest
from processors import FEW_RANKS, qwen_folders

from packidx.encode.loading import load_processor
from packidx.processor import fingerprint as decided
from packidx.processor.text import vocabulary
from packidx.recent import Recent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACKIDX_CACHE", str(tmp_path / "cache"))
    return qwen_folders(tmp_path / "processors", FEW_RANKS)["qwen2.5-vl"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One for each time that a tokenizer was normalised."""
    times: list[str] = []
    make = decided.normalise_tokenizer
    monkeypatch.setattr(
        decided, "normalise_tokenizer", lambda text: times.append("made") or make(text)
    )
    return times


def fingerprint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As a new process finds it."""
    monkeypatch.setattr(vocabulary, "_KEPT", Recent(2))
    return load_processor(folder).fingerprint()


def test_damage_is_passed_over_and_mended(
    folder: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = fingerprint(folder, monkeypatch)
    entries = (tmp_path / "cache" / "tokenizers").glob("*.json")
    [(entry, whole)] = [(path, data) for path in entries if b"NFC" in (data := path.read_bytes())]
    changed = whole.replace(b"NFC", b"NFD")
    assert changed != whole
    for data in (b"", b"{}", whole[:-1], whole[:65], changed, b"\xff\n{}"):
        entry.write_bytes(data)
        made.clear()
        assert fingerprint(folder, monkeypatch) == first and made == ["made"]
        assert entry.read_bytes() == whole


def test_another_file_release_or_code_is_another_entry(
    folder: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fingerprint(folder, monkeypatch)
    for name, value in (
        ("packidx.__version__", "0.0.9"),
        ("packidx.processor.text.vocabulary.installed", lambda name: "0.0.9"),
        ("packidx.processor.fingerprint.__file__", __file__),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, value)
            num = len(made)
            assert fingerprint(folder, monkeypatch) == first and len(made) > num
    path = folder / "tokenizer.json"
    text = path.read_text()
    try:
        path.write_text(text.replace("</think>", "</thunk>"))
        assert fingerprint(folder, monkeypatch) != first
    finally:
        path.write_text(text)  # the folder is made once per process
