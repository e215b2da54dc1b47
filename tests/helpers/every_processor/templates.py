"""A plain chat template, for classes whose own is part of checkpoints and not of transformers."""

from __future__ import annotations

PLAIN = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}{{ 'IMAGE' }}"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def plain_template(placeholder: str) -> str:
    """One that writes `placeholder` where an image stands."""
    return PLAIN.replace("IMAGE", placeholder)
