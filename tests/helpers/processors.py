"""Processor folders for tests, made as `tools/make_processors.py` makes them; chat templates."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

FEW_RANKS = 20_000
"""Enough of a vocabulary where it is not what is tested: they load in a tenth of the time."""

TEMPLATES = Path(importlib.util.find_spec("trl").origin).parent / "chat_templates"  # type: ignore
"""Chat templates of checkpoints, which come with TRL."""

_made: dict[int | None, dict[str, Path]] = {}


def _script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "tools" / "make_processors.py"
    spec = importlib.util.spec_from_file_location("make_processors", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def qwen_folders(tmp: Path, num_ranks: int | None = None) -> dict[str, Path]:
    """Folders of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, by name; made once per process, under `tmp`.

    Args:
        num_ranks: how many of the vocabulary's tokens to keep, most frequent first: folders that
            load quickly, and whose ids are not Qwen's own. None for all.
    """
    if num_ranks not in _made:
        script, arguments = _script(), sys.argv
        if num_ranks is not None:
            tmp = tmp / f"first-{num_ranks}"
            whole = script.read_ranks
            script.read_ranks = lambda path: dict(list(whole(path).items())[:num_ranks])
        sys.argv = ["make_processors.py", str(tmp)]
        try:
            script.main()
        finally:
            sys.argv = arguments
        shutil.copytree(tmp / "qwen2.5-vl", tmp / "qwen2-vl", dirs_exist_ok=True)
        path = tmp / "qwen2-vl" / "preprocessor_config.json"
        settings = json.loads(path.read_text()) | {"processor_class": "Qwen2VLProcessor"}
        path.write_text(json.dumps(settings))
        names = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl")
        _made[num_ranks] = {name: tmp / name for name in names}
    return dict(_made[num_ranks])


def tokenizer_alone(folder: Path, template: str) -> Path:
    """Make `folder` that of a tokenizer with this chat template, and of no processor."""
    shutil.copytree(qwen_folders(folder.parent / "qwen", FEW_RANKS)["qwen2.5-vl"], folder)
    for path in folder.glob("*processor_config.json"):
        path.unlink()
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.pop("processor_class", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    return folder


def trl_template(name: str) -> str:
    """Return the text of a chat template that comes with TRL."""
    return (TEMPLATES / f"{name}.jinja").read_text()
