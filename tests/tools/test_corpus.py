"""The example makers' pure parts: what they write is true, and renders as the checkpoints do."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jinja2
import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def load_example(name: str) -> ModuleType:
    """Import a script of tools/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


processors = load_example("make_processors")
corpus = load_example("make_corpus")


def test_byte_alphabet_is_one_printable_character_a_byte() -> None:
    alphabet = processors.byte_alphabet()
    assert len(set(alphabet)) == 256
    assert (alphabet[ord("a")], alphabet[ord(" ")], alphabet[ord("\n")]) == ("a", "Ġ", "Ċ")


def test_merges_follow_ranks_not_positions() -> None:
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"bc": 3, b"ab": 4, b"abc": 5}
    assert list(processors.iter_merges(ranks)) == [(b"b", b"c"), (b"a", b"b"), (b"a", b"bc")]


def render(family: str, messages: list[dict[str, Any]], **values: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    source = processors.SHOW_PARTS + processors.FAMILIES[family][0]
    return environment.from_string(source).render(messages=messages, **values)


TURNS = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What? \n"}]},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": [{"type": "video"}]},
]
RENDERED = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|> What? \n<|im_end|>\n"
    "<|im_start|>assistant\nA cat.<|im_end|>\n"
    "<|im_start|>user\n<|vision_start|><|video_pad|><|vision_end|><|im_end|>\n"
)


def test_qwen2_5_vl_adds_a_system_turn() -> None:
    default = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert render("qwen2.5-vl", TURNS) == default + RENDERED


@pytest.mark.parametrize("family", ["qwen2.5-vl", "qwen3-vl"])
def test_a_given_system_turn_stays(family: str) -> None:
    system = {"role": "system", "content": "Be brief."}
    expected = "<|im_start|>system\nBe brief.<|im_end|>\n" + RENDERED + "<|im_start|>assistant\n"
    assert render(family, [system, *TURNS], add_generation_prompt=True) == expected


def test_qwen3_vl_renders_tool_calls_and_responses() -> None:
    call = {"function": {"name": "look", "arguments": {"at": 1}}}
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [call, call]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": [{"type": "image"}]},
    ]
    called = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    assert render("qwen3-vl", messages) == (
        f"<|im_start|>assistant\n{called}\n{called}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\none\n</tool_response>"
        f"\n<tool_response>\n{image}\n</tool_response><|im_end|>\n"
    )


def test_dialogues_keep_whole_exchanges(tmp_path: Path) -> None:
    def turns(*texts: str) -> dict[str, Any]:
        return {"messages": [[{"text": text}, {"text": "."}] for text in texts]}

    blank = {"messages": [[{"text": "a"}], [{"text": " "}], [{"text": "b"}]]}
    source = tmp_path / "dataset.json"
    source.write_bytes(
        corpus.orjson.dumps({"x": turns("a", "b", "c"), "y": turns("a"), "z": blank})
    )
    assert list(corpus.dialogues(source)) == [
        {
            "id": "x",
            "conversations": [
                {"from": "human", "value": "a\n."},
                {"from": "gpt", "value": "b\n."},
            ],
        }
    ]


def test_publish_replaces_an_older_corpus_and_keeps_strangers(tmp_path: Path) -> None:
    out, built = tmp_path / "out", tmp_path / "built"
    for number, stamp in enumerate([{"version": 1}, {"version": 2}]):
        (built / "images").mkdir(parents=True)
        (built / "a.jsonl").write_text("{}\n" * (number + 1))
        assert not corpus.is_complete(out, stamp)
        corpus.publish(built, out, stamp)
        assert corpus.is_complete(out, stamp)
        (out / "mine.txt").write_text("kept")
    assert sorted(p.name for p in out.iterdir()) == [
        corpus.STAMP, "a.jsonl", "images", "mine.txt"
    ]  # fmt: skip
    (out / "a.jsonl").write_text("")
    assert not corpus.is_complete(out, {"version": 2})


def test_a_turned_photograph_is_described_as_shown(tmp_path: Path) -> None:
    (tmp_path / "images" / "photos").mkdir(parents=True)
    files = {}
    for name in ("rocket.jpg", "chelsea.png", "flower.jpg", "coffee.png"):
        files[name] = tmp_path / name
        corpus.Image.new("RGB", (640, 427), "red").save(files[name])
    photos = list(corpus.special_photos(tmp_path, files))
    for photo in photos:
        with corpus.Image.open(tmp_path / photo.path) as image:
            shown = corpus.ImageOps.exif_transpose(image)
            assert shown.size == (photo.width, photo.height)
    with corpus.Image.open(tmp_path / photos[0].path) as image:
        assert image.size == (427, 320)
    assert ("How large is this photograph?", "320 by 427 pixels.") in corpus.describe(photos[0])
