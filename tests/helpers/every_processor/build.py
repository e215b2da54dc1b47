"""One processor, put together from its parts and saved in a folder of its own."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torchvision_cpu  # noqa: F401  (before transformers)
import transformers

from every_processor import parts
from every_processor.needs import FAMILIES, NEEDS, Needs

PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}"
    "{% elif part['type'] == 'video' %}{{ 'VIDEO' }}"
    "{% elif part['type'] == 'audio' %}{{ 'AUDIO' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""For classes whose own template is part of checkpoints and not of transformers."""


def build(name: str, model_types: list[str], tmp: Path) -> tuple[Any, Path]:
    """The processor of class `name`, and the folder below `tmp` that it was saved in and loaded
    from again: what a user has."""
    folder = tmp / name
    if not folder.is_dir():
        make = FAMILIES.get(name)
        made = _assemble(name, model_types, tmp) if make is None else make(tmp)
        assert type(made).__name__ == name
        made.save_pretrained(folder)
    loaded = getattr(transformers, name).from_pretrained(folder)
    if loaded.chat_template is None:  # some classes do not take it
        loaded.chat_template = (folder / "chat_template.jinja").read_text()
    return loaded, folder


def _assemble(name: str, model_types: list[str], tmp: Path) -> Any:
    needs = NEEDS.get(name, Needs())
    processor_class = getattr(transformers, name)
    source = parts.source_of(processor_class)
    named = {**parts.named_tokens(source), **needs.named}
    tokens = parts.literal_tokens(source) | {*needs.tokens}
    made = _with_tokens(processor_class, model_types, tmp, needs, tokens, named)
    lacking = parts.token_attributes(made) - set(made.tokenizer.get_added_vocab())
    if lacking:
        made = _with_tokens(processor_class, model_types, tmp, needs, tokens | lacking, named)
    made.chat_template = _template(processor_class, made, needs)
    return made


def _template(processor_class: Any, made: Any, needs: Needs) -> str:
    """The class's own chat template, where it comes with one; else the plain one."""
    given = inspect.signature(processor_class.__init__).parameters.get("chat_template")
    if given is not None and isinstance(given.default, str):
        return given.default
    written = {}
    for kind in ("image", "video", "audio"):
        token = getattr(made, f"{kind}_token", None)
        written[kind] = "" if token is None else str(token)
    if needs.placeholder is not None:
        written["image"] = needs.placeholder
    text = PLAIN
    for kind, placeholder in {**written, **needs.written}.items():
        text = text.replace(f"'{kind.upper()}'", repr(placeholder))
    return needs.begins + text


def _with_tokens(
    processor_class: Any,
    model_types: list[str],
    tmp: Path,
    needs: Needs,
    tokens: set[str],
    named: dict[str, str],
) -> Any:
    made: dict[str, Any] = {}
    for attribute in processor_class.get_attributes():
        if attribute.endswith("tokenizer"):
            made[attribute] = parts.tokenizer(tmp, tokens, named)
            for name, token in needs.own.items():
                setattr(made[attribute], name, token)
        else:
            part = needs.parts.get(attribute)
            if isinstance(part, str):
                made[attribute] = getattr(transformers, part)()
            else:
                settings = part or {}
                made[attribute] = parts.part_class(attribute, needs.like or model_types)(**settings)
    return processor_class(**made, **needs.settings)
