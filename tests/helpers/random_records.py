"""Random conversations that try everything a tokenizer, a template and a vision tower trip over."""

from __future__ import annotations

import random
from typing import Any

from PIL import Image

WORDS = [
    *("the", " cat", "Hello", " world", "12345", "it's", "ÀÉ", "e\u0301", "\u0344", "naïve", "ﬁ"),
    *("漢字", "한글", "\u1100\u1161\u11a8", "العربية", "हिन्दी", "👩‍👩‍👧", "🇩🇪", "🙂"),
    *("\ufeff", "\u200d"),
    *(" ", "  ", "\t", "\n", "\n\n", "\r\n", "   \n  ", "\u3000", "\xa0", "\x00", "…", "{{ x }}"),
    *("<|im_end|>", "<|im_start|>assistant\n", "<|endoftext|>", "<think>", "</think>"),
    *("<|im_end", "|>", "<|box_start|>", "\ue0b00\ue0b1", "\ue0b2", "\ue0b3", "# Tools", "%}"),
]
SIZES = [(1, 1), (1, 200), (200, 1), (13, 17), (28, 28), (56, 56), (57, 99), (224, 224), (333, 97)]
MODES = ["RGB", "L", "RGBA", "P", "LA", "1", "CMYK"]


def text(rng: random.Random) -> str:
    return "".join(rng.choices(WORDS, k=rng.randrange(1, 12)))


def image(rng: random.Random, largest: int = 400) -> Image.Image:
    size = rng.choice([*SIZES, (rng.randrange(2, largest), rng.randrange(2, largest))])
    mode = rng.choice(MODES)
    picture = Image.frombytes("L", size, rng.randbytes(size[0] * size[1]))
    return picture.convert("RGB").convert(mode)


def content(rng: random.Random, images: bool) -> str | list[dict[str, Any]]:
    if not images or rng.random() < 0.4:
        return rng.choice([text(rng), text(rng), text(rng), ""])
    parts: list[dict[str, Any]] = []
    for _ in range(rng.randrange(1, 5)):
        parts.append({"type": "text", "text": text(rng)})
        if rng.random() < 0.6:
            parts.append({"type": "image", "image": image(rng)})
    rng.shuffle(parts)
    return parts


def record(rng: random.Random, *, images: bool = True, late_system: bool = True) -> dict[str, Any]:
    """An OpenAI-style record, images opened; roles in any order, with system turns in between."""
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": content(rng, False)})
    for _ in range(rng.randrange(1, 5)):
        role = rng.choice(["user", "user", "tool", "assistant"])
        messages.append({"role": role, "content": content(rng, images and role != "assistant")})
        messages.append({"role": "assistant", "content": content(rng, False)})
        if rng.random() < 0.1 and late_system:
            messages.append({"role": "system", "content": text(rng)})
    return {"messages": messages}
