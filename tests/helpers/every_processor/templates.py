"""A plain chat template, for classes whose own is part of checkpoints and not of transformers."""

from __future__ import annotations

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


def plain_template(image: str, video: str = "", audio: str = "") -> str:
    """One that writes these where an image, a video or a sound stands."""
    written = {"IMAGE": image, "VIDEO": video, "AUDIO": audio}
    text = PLAIN
    for name, placeholder in written.items():
        text = text.replace(f"'{name}'", repr(placeholder))
    return text
