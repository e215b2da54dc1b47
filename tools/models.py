"""Which image-text models of transformers packidx counts: ``make models`` writes docs/models.md.

A processor of every class is made offline. packidx estimates the lengths of the same random
conversations with each, and each real processor builds them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

REPO = Path(__file__).parent.parent
sys.path[:0] = [str(REPO / "tests" / "helpers"), str(REPO / "tools")]

import torchvision_cpu  # noqa: E402, F401  (before transformers)
import transformers  # noqa: E402
from every_processor import HEARING, NOT_BUILT, processor_classes, unmapped  # noqa: E402
from isolation_outcomes import HOLDS, REFUSED  # noqa: E402

from model_lengths import (  # noqa: E402
    KINDS,
    NUM_MIXED,
    NUM_RECORDS,
    Outcome,
    conversations,
    outcomes,
)

WORDS = ("exact", "precomputed", "heuristic", "refused")
"""What packidx may say of a record with media, best first."""


def table(results: Sequence[Outcome]) -> list[str]:
    """A row per class."""
    head = ["class", "model types", "text", "images", "videos", "audio"]
    head += ["built", "compared", "differ", "first difference"]
    lines = [_row(head), "|" + "---|" * len(head)]
    for result in results:
        numbers = (result.num_built, result.num_compared, result.num_different)
        cells = [
            f"`{result.name}`",
            _types(result.model_types),
            *(result.says[kind] for kind in KINDS),
            *map(str, numbers),
        ]
        lines.append(_row([*cells, result.first.replace("|", "\\|")]))
    return lines


def _types(model_types: Sequence[str]) -> str:
    return ", ".join(f"`{model_type}`" for model_type in model_types)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def verdicts(page_text: str) -> dict[str, tuple[str, ...]]:
    """Class → what a page says of its text, images, videos and sound."""
    cells = r" \| ".join(["([^|]*)"] * len(KINDS))
    rows = re.findall(rf"^\| `(\w+)` \| `[^|]*\| {cells} \|", page_text, re.MULTILINE)
    return {name: tuple(said) for name, *said in rows}


def release_of(page_text: str) -> str:
    """The release of transformers that a page is about."""
    release = re.search(r"transformers (\d[\w.]*\w)", page_text)
    return release[1] if release else ""


def page(results: Sequence[Outcome]) -> str:
    """The whole of docs/models.md."""
    classes = processor_classes()
    return "\n".join([*intro(classes, results), *table(results), *isolation(), *left_out(classes)])


def intro(classes: Mapping[str, list[str]], results: Sequence[Outcome]) -> list[str]:
    """What the table is about, and its sums."""
    counted = []
    for kind in KINDS[1:]:
        said = Counter(result.says[kind].split(" ")[0].rstrip(":") for result in results)
        counted.append(f"{kind}: " + ", ".join(f"{said[word]} {word}" for word in WORDS))
    num_wrong = sum(result.num_exact_different for result in results)
    num_types = sum(map(len, classes.values()))
    return [
        "# Which models packidx counts",
        "",
        "<!-- written by `make models` -->",
        f"transformers {transformers.__version__} has "
        f"{num_types - len(HEARING) + len(unmapped())} types of image-text models, and "
        f"{len(HEARING)} more are here that take sound and text. Of {num_types} it says which "
        f"processor they take: {len(classes)} classes. {len(results)} of these are made here, "
        f"without a network. packidx counts records with media as: {'; '.join(counted)}.",
        "",
        "`make models` writes this page anew. Each processor is the real class, with its image "
        "processor and their default settings. Those of packidx's families have a checkpoint's "
        "settings and chat template. The others have a plain template, where the class does not "
        "come with one. Part of Qwen's vocabulary stands in for each tokenizer, with the special "
        "tokens that the class needs. So a row says what packidx makes of a class. A checkpoint "
        "may have other settings and another template; `packidx estimate` compares those.",
        "",
        f"The same random conversations go to all, some after a system turn: {NUM_RECORDS} without "
        f"an image, with one and with several, {NUM_RECORDS} with videos, {NUM_RECORDS} with sound "
        f"and {NUM_MIXED} with media of several kinds. Images have odd sizes, and a few are "
        "slivers; videos have odd sizes, lengths and rates, and so has sound, as WAV, FLAC, MP3 "
        "and Opus. A video's own sound is left out.",
        "",
        "- **text**, **images**, **videos**, **audio**: what `packidx estimate` says of records "
        "without media, and with those of one kind. "
        "[FORMAT.md](format.md) has the words. A plan of `precomputed` or `heuristic` lengths "
        "keeps a margin. `refused` records are left out, unless they state each image's tokens or "
        "your own encoder counts them.",
        f"- **built**: records of the {3 * NUM_RECORDS + NUM_MIXED} that the processor itself "
        "builds. Some classes take one image or one sound a record, no text alone, no video of "
        "fewer frames than they sample, or no sound of a few samples; such records are refused.",
        "- **compared**: of these, such that packidx counts as well. **differ**: of these, such "
        f"whose lengths are not the same. Records called exact that differ: {num_wrong}.",
        "",
    ]


def isolation() -> list[str]:
    """Model types whose packs were measured, and those that are refused."""
    held = ", ".join(f"`{each}`" for each in sorted(HOLDS))
    lines = ["", "## Packs", ""]
    lines += [
        "Samples that the real processors build, of text alone, of one image and of two, were "
        "packed, and a tiny model of the type ran on the pack and on each sample alone "
        "(`check_isolation`). Logits were equal within 1e-4 for: " + held + ".",
        "",
        "Gemma 4 was measured with images read in one direction. `prepare_model` refuses its "
        "checkpoints whose `use_bidirectional_attention` is `vision`. It takes Llama 4 where "
        "`attn_temperature_tuning` is off.",
        "",
        "`prepare_model` refuses these, which do not keep samples apart:",
        "",
    ]
    return [*lines, *(f"- `{each}`: {REFUSED[each]}" for each in sorted(REFUSED))]


def left_out(classes: Mapping[str, list[str]]) -> list[str]:
    """Classes that are not made, and model types without a class."""
    lines = ["", "Not made:", ""]
    lines += [
        f"- `{name}` ({_types(types)}) {NOT_BUILT[name]}."
        for name, types in classes.items()
        if name in NOT_BUILT
    ]
    named = "transformers does not say which processor these take; their checkpoints name it"
    return [*lines, "", f"{named}: {_types(unmapped())}.", ""]


def outcome(name: str, folder: str) -> Outcome:
    """Of one class, with all conversations; in a process of its own below `folder`."""
    own = Path(folder, str(os.getpid()))
    os.environ["PACKIDX_CACHE"] = str(own / "cache")
    records = conversations(1, own / "images")
    [result] = outcomes(own, records, [name])
    print(f"{name}: {result.says}, {result.num_different} differ", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path, help="the page that is written")
    args = parser.parse_args()
    names = [name for name in processor_classes() if name not in NOT_BUILT]
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(os.cpu_count()) as pool:
        results = pool.starmap(outcome, [(name, folder) for name in names], chunksize=1)
    args.output.write_text(page(results), encoding="utf-8")
    return 1 if any(result.num_exact_different for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
