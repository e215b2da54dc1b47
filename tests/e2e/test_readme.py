"""README as a newcomer follows it: a clone, a new environment, every block in order."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
MODEL = "from train_tiny import build_model; build_model().save_pretrained('model')"


@pytest.fixture(scope="module")
def clone(corpus: Path, whole_processors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the repository, and what `make plan` builds in `data`."""
    folder = tmp_path_factory.mktemp("newcomer") / "clone"
    files = subprocess.run(
        ["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True
    )
    for name in files.stdout.splitlines():
        if (REPO / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, folder / name)
    (folder / "data").mkdir()
    (folder / "data" / "corpus").symlink_to(corpus)
    (folder / "data" / "processors").symlink_to(whole_processors)
    return folder


@pytest.mark.slow
def test_every_block_of_readme_runs_in_a_new_environment(clone: Path, tmp_path: Path) -> None:
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], check=True)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env |= {"PATH": f"{python.parent}{os.pathsep}{env['PATH']}"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=clone, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout

    # The torch of the trainer, and its torchvision: the releases of the Makefile.
    makefile = (REPO / "Makefile").read_text()
    torch, vision = (re.search(rf"{name}==\S+", makefile) for name in ("torch", "torchvision"))
    assert torch and vision
    run("pip", "install", "--quiet", torch[0])
    ran = []
    for kind, text in BLOCK.findall((REPO / "README.md").read_text()):
        for line in text.splitlines() if kind in ("console", "sh") else ():
            if not line.startswith("make "):  # `make plan` made `data`
                ran.append(line.split()[0])
                assert run("bash", "-c", line) or line.startswith("pip"), f"{line} prints nothing"
        if kind == "python":
            run("pip", "install", "--quiet", "--no-deps", vision[0])
            run("python", "-c", f"import sys; sys.path.insert(0, 'examples'); {MODEL}")
            ran.append(kind)
            run("python", "-c", text)
    assert ran == ["pip", "packidx", "packidx", "packidx", "python"]
