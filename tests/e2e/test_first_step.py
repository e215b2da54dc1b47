"""From `pip install` to the first training step, by README's own lines, on a user's own records."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from PIL import Image

REPO = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(console|sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CAPACITY = 1024
MODEL = """from train_tiny import build_model
import torch
from packidx.torch import prepare_model
model = prepare_model(build_model())
before = [weight.detach().clone() for weight in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """    (model(**batch).loss / 8).backward()
"""
END = """
optimizer.step()
changed = sum(not torch.equal(a, b) for a, b in zip(before, model.parameters()))
print(f"stepped: {changed} tensors, next position {state['position']}")
"""


def readme() -> tuple[list[str], str]:
    """The lines that are typed from `Your own data` to `Where to read on`, and the script."""
    text = (REPO / "README.md").read_text()
    part = text[text.index("## Your own data") : text.index("## Where to read on")]
    found = BLOCK.findall(part)
    typed = [line for kind, lines in found if kind != "python" for line in lines.splitlines()]
    looked = ("packidx stats", "packidx sql")  # nobody has to look
    scripts = [lines for kind, lines in found if kind == "python"]
    assert len(scripts) == 1
    return [line for line in typed if not line.startswith(looked)], scripts[0]


def own_records(folder: Path) -> None:
    """1,000 records, every fifth with an image."""
    lines = []
    for number in range(1000):
        turns = [
            {"from": "human", "value": f"How many are {number} and {number % 7}?"},
            {"from": "gpt", "value": f"They are {number + number % 7}. " * (1 + number % 20)},
        ]
        record = {"conversations": turns}
        if number % 5 == 0:
            record["image"] = f"{number % 3}.png"
            turns[0]["value"] = f"<image>\n{turns[0]['value']}"
        lines.append(json.dumps(record))
    for number in range(3):
        image = Image.new("RGB", (100 + 60 * number, 90), (80 * number, 0, 0))
        image.save(folder / f"{number}.png")
    (folder / "mine.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A fresh environment, which finds the packages that are installed here, but not packidx."""
    folder = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip"]
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "setuptools"], check=True)  # an old one
    [packages] = folder.glob("lib/python*/site-packages")
    here = [path for path in sys.path if path.endswith("site-packages")] or [
        sysconfig.get_path("purelib")
    ]
    # Behind its own, and without editable installs, of which packidx may be one.
    (packages / "z_here.pth").write_text("".join(f"{path}\n" for path in here))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return env | {"PATH": f"{folder / 'bin'}{os.pathsep}{env['PATH']}", "OMP_NUM_THREADS": "2"}


@pytest.mark.slow
def test_four_commands_lead_to_the_first_step(
    environment: dict[str, str], processors: Path, tmp_path: Path
) -> None:
    typed, script = readme()
    assert len(typed) <= 4
    pip, pack, train = typed
    assert (pip.split()[:2], pack.split()[:2], train) == (
        ["pip", "install"],
        ["packidx", "pack"],
        "python train.py",
    )
    folder = tmp_path / "work"
    folder.mkdir()
    own_records(folder)

    def run(command: str) -> str:
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    # Its packages lie here already, so that nothing is downloaded.
    build = "--no-deps --no-build-isolation"
    run(f"{pip.replace('packidx[torch,transformers]', str(REPO))} {build}")
    assert str(tmp_path / "env") in run("python -c 'import packidx; print(packidx.__file__)'")
    processor = str(processors / "qwen2.5-vl")
    words = shlex.split(pack)
    own = {
        "data/corpus/dialogues.jsonl": "mine.jsonl",
        "data/processors/qwen2.5-vl": processor,
        "4096": str(CAPACITY),
    }
    assert set(own) < set(words)
    told = run(shlex.join(own.get(word, word) for word in words))
    assert "1,000 in, 1,000 packed" in told
    for old, new in (
        ("data/processors/qwen2.5-vl", processor),
        ("\nfor micro_step", f"\n{MODEL}\nfor micro_step"),
        (next(line for line in script.splitlines(True) if "# model(**batch)" in line), STEP),
    ):
        assert old in script
        script = script.replace(old, new, 1)
    (folder / "train.py").write_text(script + END)
    environment["PYTHONPATH"] = str(REPO / "examples")
    told = run(train)
    stepped = re.search(r"stepped: (\d+) tensors, next position 8", told)
    assert stepped
    assert int(stepped[1]) > 20
