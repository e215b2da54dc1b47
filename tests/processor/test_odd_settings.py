"""Values of other types in a processor's JSON files end in one sentence that names file and key."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from every_processor import build

from packidx.encode.loading import load_processor
from packidx.errors import SourceError

CLASSES = ["Qwen2_5_VLProcessor", "InternVLProcessor", "Idefics3Processor", "LlavaProcessor"]
KEYS = {
    "patch_size": CLASSES[:1],
    "merge_size": CLASSES[:1],
    "do_resize": CLASSES,
    "max_patches": CLASSES[1:2],
    "resample": CLASSES,
    "image_mean": CLASSES,
    "rescale_factor": CLASSES,
}
VALUES: list[Any] = ["x", [1], 2**70, float("nan"), {"a": 1}, "\ud800", -3, True]
FITTING = [("do_resize", "True"), ("image_mean", "[1]"), ("processor_class", "'x'")]
PARTS = ("image_processor", "video_processor", "processor_class")
CASES = [
    (name, "image_processor", key, odd) for key in KEYS for name in KEYS[key] for odd in VALUES
]
CASES += [(CLASSES[0], None, key, odd) for key in PARTS for odd in (5, [1], "x")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    tmp = tmp_path_factory.mktemp("odd")
    return {name: build(name, [], tmp)[1] for name in CLASSES}


@pytest.mark.parametrize(("name", "part", "key", "value"), CASES)
def test_settings_of_other_types(
    name: str, part: str | None, key: str, value: Any, folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(folders[name], tmp_path / "p")
    path = folder / "processor_config.json"
    config = json.loads(path.read_text())
    (config if part is None else config[part])[key] = value
    path.write_text(json.dumps(config))
    if (key, repr(value)) in FITTING:
        load_processor(folder)
        return
    with pytest.raises(SourceError) as error:
        load_processor(folder)
    assert key in str(error.value) and "processor_config.json" in str(error.value)
