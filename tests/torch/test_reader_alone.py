"""A training image without the planner: what reads packs there, and what says what is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from packidx_cli.main import main
from PIL import Image
from record_files import chats, write

KINDS = ("jsonl", "tar", "parquet")
PLANNER = "polars duckdb click cloup rich typer"
"""What planning needs and reading does not; typer, an optional part of transformers, brings two."""
NETWORK = "fsspec ruamel huggingface_hub braceexpand"
"""What further sources and processors given by name need."""
ENCODER = "transformers tokenizers jinja2"

OWN = '''
"""An encoder of the user's own: a token per character, and the pixels of the images."""
import numpy as np


def encode(record):
    contents = [turn["content"] for turn in record["messages"]]
    parts = [part for each in contents for part in ([each] if isinstance(each, str) else each)]
    text = "".join(part if isinstance(part, str) else part.get("text", "*") for part in parts)
    sample = {"input_ids": [ord(character) % 500 for character in text]}
    images = [part["image"] for part in parts if "image" in part]
    images = [np.asarray(image.convert("RGB")).reshape(-1, 3) for image in images]
    return sample | ({"pixels": np.concatenate(images)} if images else {})
'''

READ = """
import sys
from torch.utils.data import DataLoader
from packidx.torch import PackedDataset, PackSampler
from packidx.torch import *


def encoder():
    if sys.argv[2] == "own":
        import own
        return own.encode
    from packidx.encode import ProcessorEncoder
    return ProcessorEncoder(sys.argv[2])


def main():
    dataset = PackedDataset(sys.argv[1], encoder())
    sampler = PackSampler(dataset.index, global_batch=1)
    seen = []
    methods = sys.argv[3].split(",")
    for method in methods:
        loader = DataLoader(
            dataset, sampler=sampler, num_workers=1, multiprocessing_context=method,
            batch_size=1, collate_fn=collate_one,
        )
        for pack, batch in loader:
            assert batch["input_ids"].shape == batch["labels"].shape
            seen += pack.sample_ids.tolist()
            media = [name for name in ("pixels", "pixel_values") if name in pack.samples[0]]
            assert media and len(batch[media[0]])
    assert sorted(seen) == sorted(len(methods) * list(range(9))), seen
    absent = "polars duckdb rich click ruamel braceexpand ray".split()
    assert not {name.split(".")[0] for name, module in sys.modules.items() if module} & set(absent)


def collate_one(packs):
    return packs[0], collate(packs)


if __name__ == "__main__":
    main()
    print("read")
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine records with an image each, in three kinds of files."""
    folder = tmp_path_factory.mktemp("data")
    for kind in KINDS:
        (folder / kind).mkdir()
        for number in range(3):
            Image.new("RGB", (56 + 28 * number, 84)).save(folder / kind / f"{number}.png")
        write(folder / kind, kind, chats(3))
    (folder / "own.py").write_text(OWN)
    (folder / "read.py").write_text(READ)
    return folder


def _planned(data: Path, name: str, *how: str) -> Path:
    sources = [f"{kind}={data}/{kind}/data.{kind}" for kind in KINDS]
    lengths, index = data / f"lengths-{name}", data / f"index-{name}"
    options = ["-o", str(lengths), "--quiet", "--workers", "1"]
    assert main(["estimate", *sources, *options, *how]) == 0
    assert main(["plan", str(lengths), "-o", str(index), "--capacity", "1024", "--quiet"]) == 0
    return index


@pytest.fixture(scope="module")
def own_index(data: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(data)
        patch.syspath_prepend(str(data))
        return _planned(data, "own", "--encode", "own:encode")


@pytest.fixture(scope="module")
def index(data: Path, processors: Path) -> Path:
    return _planned(data, "qwen", "--processor", str(processors / "qwen2.5-vl"))


def run(folder: Path, absent: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Python, and all that it starts, in a process where packages cannot be imported."""
    code = f"import sys\nsys.modules |= dict.fromkeys({absent.split()!r})\n"
    (folder / "sitecustomize.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        timeout=300,
    )


def test_packs_are_read_with_an_encoder_of_the_users_own(
    own_index: Path, data: Path, tmp_path: Path
) -> None:
    absent = f"{PLANNER} {NETWORK} {ENCODER}"
    done = run(tmp_path, absent, data / "read.py", own_index, "own", "fork,forkserver")
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


def test_with_transformers_packs_are_read_without_the_planners_packages(
    index: Path, data: Path, processors: Path, tmp_path: Path
) -> None:
    folder = processors / "qwen2.5-vl"
    done = run(tmp_path, f"{PLANNER} braceexpand", data / "read.py", index, folder, "fork")
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("import packidx.encode", "pip install tokenizers jinja2"),
        ("import packidx; packidx.plan_packs", "pip install packidx"),
        ("import packidx; packidx.estimate_lengths", "pip install packidx"),
        ("import packidx; packidx.open_index('s3://bucket/index')", "pip install 'packidx[s3]'"),
        ("import packidx; packidx.open_index('gs://bucket/index')", "pip install fsspec"),
    ],
)
def test_what_is_not_there_is_named_with_the_command_that_brings_it(
    program: str, named: str, tmp_path: Path
) -> None:
    done = run(tmp_path, f"{PLANNER} {NETWORK} {ENCODER}", "-c", program)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1 and last.startswith("packidx.errors.MissingExtraError: "), last
    assert named in last


@pytest.mark.parametrize(
    ("absent", "says"),
    [("click", "the command line needs click"), ("polars", "this command needs polars")],
)
def test_a_command_without_its_package_is_one_sentence(
    absent: str, says: str, tmp_path: Path
) -> None:
    words = ("-m", "packidx_cli", "plan", "lengths", "-o", "index", "--capacity", "9")
    done = run(tmp_path, absent, *words)
    assert (done.returncode, done.stdout) == (1, "")
    said = f"{says}, which is not installed here: run pip install packidx"
    assert done.stderr == f"packidx: {said}\n"
