"""Processors of one release of transformers: saved, asked, and told to a process of another.

As a script it does so under the release that it finds: ``python release_processors.py OUT``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torchvision_cpu  # noqa: F401  (before transformers)
import transformers
from clips import write_clip
from PIL import Image
from tokenizers import Tokenizer

from packidx.encode import ProcessorEncoder

REPO = Path(__file__).resolve().parents[2]
NUM_RANKS = 2000
"""Of Qwen's vocabulary: a processor is loaded some thirty times in these tests."""
FAMILIES = ("qwen2-vl", "qwen2.5-vl", "qwen3-vl", "internvl", "llava_onevision", "gemma3")
FURTHER = ("glm4v", "llava", "llava_next", "pixtral", "idefics3", "smolvlm")
"""Families whose folders are read, too."""
PLANNED = ("qwen2.5-vl", "qwen3-vl", "internvl", "gemma3")
"""Families whose plans are read."""


def folder_of(name: str, out: Path) -> Path:
    """One of `FAMILIES` or `FURTHER`, saved below `out` by the transformers that is imported."""
    import family_processors
    import family_processors_tiles as tiles
    from family_processors import GLM46V_TEMPLATE
    from processors import qwen_folders

    qwen = qwen_folders(out / "qwen", NUM_RANKS)
    make: dict[str, Callable[[], Any]] = {
        "internvl": lambda: family_processors.family_processor("internvl-small", out)[0],
        "glm4v": lambda: family_processors.family_processor("glm4v", out)[0],
        "llava": lambda: tiles.llava(out),
        "llava_next": lambda: tiles.llava_next(out, 4),
        "llava_onevision": lambda: tiles.llava_onevision(out, 56),
        "gemma3": lambda: tiles.gemma3(out, 112),
        "pixtral": lambda: tiles.pixtral(out, 256),
        "idefics3": lambda: tiles.idefics3(out, 56),
        "smolvlm": lambda: tiles.smolvlm(out, 64),
    }
    loader = transformers.AutoProcessor
    processor = loader.from_pretrained(qwen[name]) if name in qwen else make[name]()
    if name == "glm4v":  # its own writes an assistant's list of texts as Python does
        processor.chat_template = GLM46V_TEMPLATE
    processor.save_pretrained(out / name)
    return out / name


def record(*parts: Any, answer: str = " Two of them.\n", system: str = "") -> dict[str, Any]:
    """A record of one question and its answer: texts, `Path` of an image or of a clip."""
    kinds = {".png": "image", ".mp4": "video"}
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {"type": kinds[part.suffix], kinds[part.suffix]: str(part)}
        for part in parts
    ]
    messages = [{"role": "user", "content": content}]
    messages += [{"role": "assistant", "content": [{"type": "text", "text": answer}]}]
    if system:
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    return {"messages": messages}


def make_media(out: Path) -> tuple[list[Path], list[Path]]:
    """Images of odd sizes, and clips named by their frames per second, below `out`."""
    out.mkdir(parents=True, exist_ok=True)
    images = [out / f"{width}x{height}.png" for width, height in SIZES]
    for path, size in zip(images, SIZES, strict=True):
        noise = random.Random(path.name).randbytes(size[0] * size[1] * 3)
        Image.frombytes("RGB", size, noise).save(path)
    clips = [write_clip(out / "10.mp4", frames=13, size=(98, 66))]
    clips.append(write_clip(out / "2.mp4", frames=4, size=(130, 66), fps="2"))
    return images, clips


SIZES = ((57, 99), (13, 17), (300, 31), (128, 128))


def records(out: Path) -> list[dict[str, Any]]:
    """Texts, one image, several, between texts and in two rounds; the media lie below `out`."""
    a, b, c, d = make_media(out)[0]
    rounds = record("One: ", a, b, "\nand the other?", system="Be brief.")
    rounds["messages"] += record(c, "And this one?", answer="漢字 👩‍👩‍👧 naïve é")["messages"]
    return [
        record("What is it?"),
        record(" \n Tell me more.\n\n", system="Be brief.", answer="<|im_end|> is a token"),
        record(a, "\nWhat is it? "),
        record("Look: ", d, " well?"),
        rounds,
    ]


def clip_records(out: Path) -> list[dict[str, Any]]:
    """A clip, alone and beside an image."""
    images, (ten, two) = make_media(out)
    return [record(ten, "What happens?"), record(images[0], "and\n", two, "?")]


def without_outer_markers(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """`ids` as older releases have them: they drop the two markers around Qwen3-VL's whole video,
    which newer ones keep, and so do we under any release. Its frames have markers of their own."""
    token = tokenizer.token_to_id
    start, end, video = (token(f"<|{one}|>") for one in ("vision_start", "vision_end", "video_pad"))
    first = ids.index(video) - 1  # of the first frame; its time stands before it
    outer = max(at for at in range(first) if ids[at] == start)
    last = max(at for at, ident in enumerate(ids) if ident == end)
    assert ids[last - 1] == end
    return ids[:outer] + ids[outer + 1 : last] + ids[last + 1 :]


def rope_model(name: str, encoder: ProcessorEncoder) -> tuple[Any, dict[str, int]]:
    """A tiny model that knows the processor's ids, and these."""
    ids = encoder.media_token_ids
    prefix = {"qwen2-vl": "Qwen2VL", "qwen2.5-vl": "Qwen2_5_VL", "qwen3-vl": "Qwen3VL"}[name]
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
    text = dict.fromkeys(("hidden_size", "intermediate_size"), 16)
    text |= dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 2)
    text |= {"num_hidden_layers": 1, "vocab_size": 32, "head_dim": 8}
    vision = {"depth": 1, "num_heads": 2, "spatial_merge_size": 2, "hidden_size": 16}
    vision |= {"embed_dim": 16} if name == "qwen2-vl" else {"out_hidden_size": 16}
    if name == "qwen3-vl":
        vision["deepstack_visual_indexes"] = []
    start = encoder.files.tokenizer.token_to_id("<|vision_start|>")
    # The first name is of transformers 5, the second of 4.
    config = getattr(transformers, f"{prefix}Config")(
        text_config={**text, "rope_parameters": rope, "rope_scaling": rope},
        vision_config={**vision, "tokens_per_second": 2},
        image_token_id=ids["image"],
        video_token_id=ids["video"],
        vision_start_token_id=start,
    )
    return getattr(transformers, f"{prefix}Model")(config), ids


def write_records(path: Path, given: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in given), encoding="utf-8")
    return path


def under_the_environments_own(script: Path, *arguments: str | Path) -> None:
    """Run a script under the release of transformers that the environment has without overlays."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [path for path in paths if path and not Path(path, "transformers").is_dir()]
    python_path = os.pathsep.join([str(REPO / "tests" / "helpers"), *kept])
    environment = {**os.environ, "PYTHONPATH": python_path}
    command = [sys.executable, str(script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def main(out: Path, others: Path) -> None:
    """Save all families and plan the records with them; tell what there is of another release.

    Args:
        out: where ``answers.json`` and everything else goes.
        others: folders that another release saved, by family.
    """
    from packidx import estimate_lengths, plan_packs
    from packidx.encode.loading import files_of, load_processor

    loader = transformers.AutoProcessor
    answers: dict[str, Any] = {"release": transformers.__version__, "families": {}}
    source = write_records(out / "data.jsonl", records(out / "media"))
    with_clips = write_records(out / "clips.jsonl", clip_records(out / "media"))
    for name in (*FAMILIES, *FURTHER):
        told: dict[str, Any] = {}
        folder = folder_of(name, out)
        told["fingerprint"] = load_processor(folder).fingerprint()
        other = others / name
        told["other"] = load_processor(other).fingerprint()
        told["other loaded"] = files_of(loader.from_pretrained(other)).fingerprint()
        if name in PLANNED:
            sources = [source, with_clips] if name.startswith("qwen") else [source]
            estimate_lengths(sources, out / f"{name}-lengths", processor=folder, workers=1)
            plan_packs(out / f"{name}-lengths", out / f"{name}-index", capacity=4096)
        answers["families"][name] = told
    (out / "answers.json").write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
