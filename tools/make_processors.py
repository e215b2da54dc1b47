"""Write two processor folders, Qwen2.5-VL's and Qwen3-VL's, from what package registries ship.

The folders are what `transformers.AutoProcessor.from_pretrained` and `packidx estimate --processor`
load. Nothing here imports torch or transformers: the vocabulary comes from the `dashscope` wheel
(`dashscope/resources/qwen.tiktoken`, Apache-2.0), the tokenizer is built by `tokenizers` alone, and
the settings are the published checkpoints' values, written down below.

    pip install --no-deps dashscope
    python tools/make_processors.py data/processors
"""

import argparse
import base64
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import ByteLevel as ByteLevelProcessor

VERSION = 2
"""Raise it whenever the files written change: a folder of another version is written anew."""
STAMP = "made_by_packidx.json"

# transformers 5.23, models/qwen2/tokenization_qwen2.py: PRETOKENIZE_REGEX.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Ids count on from the vocabulary's end, so both lists are in the order of the official ids.
SPECIAL_TOKENS = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>"),
    *("<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>"),
    *("<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
PLAIN_TOKENS = [
    *("<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"),
    *("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>", "</tool_response>"),
    *("<think>", "</think>"),
]
NUM_RANKS = 151_643

CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]

# What a turn says: text as it stands, one marker triple per image or video. `seen` counts them
# over the whole conversation for `add_vision_id`, as both families' templates do.
SHOW_PARTS = """\
{%- set seen = namespace(images=0, videos=0) -%}
{%- macro show(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type == 'image' or 'image' in part or 'image_url' in part -%}
                {%- set seen.images = seen.images + 1 -%}
                {{- 'Picture ' ~ seen.images ~ ': ' if add_vision_id else '' -}}
                {{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
            {%- elif part.type == 'video' or 'video' in part -%}
                {%- set seen.videos = seen.videos + 1 -%}
                {{- 'Video ' ~ seen.videos ~ ': ' if add_vision_id else '' -}}
                {{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
            {%- elif 'text' in part -%}
                {{- part.text -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
"""

# Qwen2.5-VL: every role alike, and a default system turn.
QWEN2_5_VL_TEMPLATE = """\
{%- for message in messages -%}
    {%- if loop.first and message.role != 'system' -%}
        {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
    {%- endif -%}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ show(message.content) ~ '<|im_end|>\\n' -}}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""

# Qwen3-VL: no default system turn; media only in user and tool turns; a system turn that is not the
# first says nothing; tools are listed in the system turn, and tool turns share one user turn.
QWEN3_VL_TEMPLATE = """\
{%- macro words(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- else -%}
        {%- for part in content if 'text' in part -%}{{- part.text -}}{%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- set has_system = messages[0].role == 'system' -%}
{%- if tools -%}
    {{- '<|im_start|>system\\n' -}}
    {{- words(messages[0].content) ~ '\\n\\n' if has_system else '' -}}
    {{- '# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n' -}}
    {{- 'You are provided with function signatures within <tools></tools> XML tags:\\n<tools>' -}}
    {%- for tool in tools -%}{{- '\\n' ~ tool | tojson -}}{%- endfor -%}
    {{- '\\n</tools>\\n\\nFor each function call, return a json object with function name ' -}}
    {{- 'and arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n' -}}
    {{- '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>' -}}
    {{- '<|im_end|>\\n' -}}
{%- elif has_system -%}
    {{- '<|im_start|>system\\n' ~ words(messages[0].content) ~ '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'user' -%}
        {{- '<|im_start|>user\\n' ~ show(message.content) ~ '<|im_end|>\\n' -}}
    {%- elif message.role == 'assistant' -%}
        {{- '<|im_start|>assistant\\n' ~ words(message.content) -}}
        {%- for call in message.tool_calls or [] -%}
            {%- set asked = call.function or call -%}
            {%- set given = asked.arguments -%}
            {{- '\\n' if message.content or not loop.first else '' -}}
            {{- '<tool_call>\\n{"name": "' ~ asked.name ~ '", "arguments": ' -}}
            {{- (given if given is string else given | tojson) ~ '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- '<|im_start|>user' if loop.first or loop.previtem.role != 'tool' else '' -}}
        {{- '\\n<tool_response>\\n' ~ show(message.content) ~ '\\n</tool_response>' -}}
        {{- '<|im_end|>\\n' if loop.last or loop.nextitem.role != 'tool' else '' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|im_start|>assistant\\n' if add_generation_prompt else '' -}}
"""


def find_vocabulary() -> Path:
    """The path of `qwen.tiktoken`; dashscope is not imported, for its dependencies are skipped."""
    spec = find_spec("dashscope")
    folders = list(spec.submodule_search_locations or []) if spec else []
    # `make` installs it apart from the environment, as it cannot be imported without the others.
    for folder in [*folders, Path(sys.prefix, "corpus-packages", "dashscope")]:
        path = Path(folder, "resources", "qwen.tiktoken")
        if path.is_file():
            return path
    raise SystemExit("qwen.tiktoken not found: run `pip install --no-deps dashscope` first")


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token bytes → rank, from lines of `base64 rank`."""
    pairs = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    if len(ranks) != NUM_RANKS:
        raise SystemExit(f"{path} holds {len(ranks)} tokens, expected {NUM_RANKS}")
    return ranks


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary: GPT-2's map."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(spare)) for byte in range(256)]


def merge_of(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that make `token`: tiktoken's ranks imply the merges, but do not list them.

    Merging a token's bytes by rank, lowest first, ends with the token itself; the last two parts
    before that are its merge.
    """
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        joined = [left + right for left, right in zip(parts, parts[1:], strict=False)]
        at = min(range(len(joined)), key=lambda i: ranks.get(joined[i], NUM_RANKS))
        parts[at : at + 2] = [joined[at]]
    return parts[0], parts[1]


def iter_merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """All merges in rank order; single bytes have none."""
    for token in sorted(ranks, key=ranks.__getitem__):
        if len(token) > 1:
            yield merge_of(token, ranks)


def build_tokenizer(ranks: dict[bytes, int]) -> Tokenizer:
    """The official Qwen2/2.5/3 tokenizer, as transformers 5.23's `Qwen2Tokenizer` builds it."""
    alphabet = byte_alphabet()

    def spell(token: bytes) -> str:
        return "".join(alphabet[byte] for byte in token)

    merges = [(spell(left), spell(right)) for left, right in iter_merges(ranks)]
    vocab = {spell(token): rank for token, rank in ranks.items()}
    model = BPE(vocab, merges, continuing_subword_prefix="", end_of_word_suffix="")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    spell_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spell_bytes])
    tokenizer.post_processor = ByteLevelProcessor(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in PLAIN_TOKENS])
    expected = len(ranks) + len(SPECIAL_TOKENS) + len(PLAIN_TOKENS)
    if tokenizer.get_vocab_size() != expected:
        raise SystemExit(f"built {tokenizer.get_vocab_size()} tokens, expected {expected}")
    return tokenizer


def tokenizer_config(max_length: int) -> dict[str, Any]:
    """`tokenizer_config.json`: which class loads the tokenizer, and its end and padding tokens."""
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": max_length,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        # As published checkpoints have them; transformers 4 cannot load a list of 5's own name.
        "additional_special_tokens": SPECIAL_TOKENS[1:],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "split_special_tokens": False,
    }


def qwen2_5_vl_settings() -> dict[str, Any]:
    """Qwen2.5-VL-7B-Instruct's settings; no video file: its video processor reads this."""
    image: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 12_845_056}
    image |= {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    image |= {"image_mean": CLIP_MEAN, "image_std": CLIP_STD}
    image |= {"image_processor_type": "Qwen2VLImageProcessor"}
    return {
        "preprocessor_config.json": image | {"processor_class": "Qwen2_5_VLProcessor"},
        "tokenizer_config.json": tokenizer_config(131_072),
    }


def qwen3_vl_settings() -> dict[str, Any]:
    """Qwen3-VL-Instruct's settings; its size limits are pixel counts, a video's over all frames."""
    shared: dict[str, Any] = {"patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}
    shared |= {"image_mean": HALF, "image_std": HALF, "processor_class": "Qwen3VLProcessor"}
    image = {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}, **shared}
    video = {"size": {"shortest_edge": 4096, "longest_edge": 25_165_824}, "fps": 2, **shared}
    return {
        "preprocessor_config.json": image | {"image_processor_type": "Qwen2VLImageProcessor"},
        "video_preprocessor_config.json": video | {"video_processor_type": "Qwen3VLVideoProcessor"},
        "tokenizer_config.json": tokenizer_config(262_144),
    }


FAMILIES = {
    "qwen2.5-vl": (QWEN2_5_VL_TEMPLATE, qwen2_5_vl_settings),
    "qwen3-vl": (QWEN3_VL_TEMPLATE, qwen3_vl_settings),
}


def stamp_for(vocabulary: Path) -> dict[str, Any]:
    """What a complete folder says of itself, so that an unchanged one is not built twice."""
    return {"version": VERSION, "vocabulary": hashlib.sha256(vocabulary.read_bytes()).hexdigest()}


def is_complete(folder: Path, stamp: dict[str, Any]) -> bool:
    path = folder / STAMP
    return path.is_file() and json.loads(path.read_text()) == stamp


def write_folder(folder: Path, family: str, tokenizer: Tokenizer, stamp: dict[str, Any]) -> None:
    """Write one processor folder beside its final place, then rename: nobody sees half of it."""
    template, settings = FAMILIES[family]
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    tokenizer.save(str(building / "tokenizer.json"))
    (building / "chat_template.jinja").write_text(SHOW_PARTS + template)
    for name, values in {**settings(), STAMP: stamp}.items():
        (building / name).write_text(json.dumps(values, indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write Qwen2.5-VL and Qwen3-VL processor folders.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write them under")
    out: Path = parser.parse_args().out
    vocabulary = find_vocabulary()
    stamp = stamp_for(vocabulary)
    missing = [family for family in FAMILIES if not is_complete(out / family, stamp)]
    if not missing:
        print(f"{out}: complete ({', '.join(FAMILIES)}), nothing to do")
        return
    tokenizer = build_tokenizer(read_ranks(vocabulary))
    for family in missing:
        write_folder(out / family, family, tokenizer, stamp)
        print(f"{out / family}: {tokenizer.get_vocab_size():,} tokens")


if __name__ == "__main__":
    main()
