"""What each word of a label policy trains on, in several kinds of templates."""

from __future__ import annotations

import pytest

from packidx.errors import OptionError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.labels import LabelPolicy
from packidx.records.conversation import Conversation, Turn

CONTROL = ("<|im_start|>", "<|im_end|>")
CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
_WORDS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}"
    "{% endif %}{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}"
    "{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}THINK{% endif %}"
)
PLAIN = _WORDS.replace("THINK", "")
# As Qwen3-Thinking's and DeepSeek-R1's: the prompt opens what the history may leave out.
OPENED = _WORDS.replace("THINK", "{{ '<think>\n' }}")
BLOCKS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content + '<|im_end|>\n' }}{% endgeneration %}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
JSON = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def trained(source: str, words: str, *turns: Turn) -> list[str]:
    template = ChatTemplate(source, control_tokens=CONTROL, policy=LabelPolicy.parse(words))
    for _ in range(2):  # the second time from what was learned
        rendered = template.render(Conversation(turns))
        found = [rendered.text[start:end] for start, end in rendered.label_spans]
    return found


USER, AGAIN = Turn("user", ("hi",)), Turn("user", ("and",))
FIRST, LAST = Turn("assistant", ("yes",)), Turn("assistant", ("no",))
CALLS = Turn("assistant", (), {"tool_calls": [CALL]})
RESULT = Turn("tool", ("42",))
THOUGHT = Turn("assistant", ("yes",), {"reasoning_content": "hm"})
THOUGHT_CALL = Turn("assistant", (), {"reasoning_content": "hm", "tool_calls": [CALL]})


@pytest.mark.parametrize(
    ("source", "words", "turns", "expected"),
    [
        (PLAIN, "all", (USER, FIRST, AGAIN, LAST), ["yes<|im_end|>", "no<|im_end|>"]),
        (PLAIN, "last", (USER, FIRST, AGAIN, LAST), ["no<|im_end|>"]),
        (PLAIN, "no-eot", (USER, FIRST, AGAIN, LAST), ["yes", "no"]),
        (PLAIN, "last,no-eot", (USER, FIRST, AGAIN, LAST), ["no"]),
        (BLOCKS, "all", (USER, FIRST), ["yes<|im_end|>\n"]),
        (BLOCKS, "no-eot", (USER, FIRST, AGAIN, LAST), ["yes", "no"]),
        (PLAIN, "all", (USER, THOUGHT), ["<think>\nhm\n</think>\n\nyes<|im_end|>"]),
        (PLAIN, "all", (USER, CALLS, RESULT, LAST), [f"{JSON}<|im_end|>", "no<|im_end|>"]),
        (OPENED, "all", (USER, CALLS, RESULT, LAST), [f"{JSON}<|im_end|>", "no<|im_end|>"]),
        (OPENED, "all", (USER, FIRST, AGAIN, LAST), ["yes<|im_end|>", "no<|im_end|>"]),
        (PLAIN, "all", (USER, THOUGHT_CALL), [f"<think>\nhm\n</think>\n\n{JSON}<|im_end|>"]),
    ],
)
def test_what_is_trained_on(
    source: str, words: str, turns: tuple[Turn, ...], expected: list[str]
) -> None:
    assert trained(source, words, *turns) == expected


@pytest.mark.parametrize("words", ["no-thinking", "newline", "tool-calls", "eot", "all,last"])
def test_other_words_are_refused(words: str) -> None:
    with pytest.raises(OptionError, match=f"label policy: .*{words.partition(',')[0]}"):
        LabelPolicy.parse(words)


def test_a_records_own_flag_wins() -> None:
    turns = (USER, Turn("assistant", ("yes",), train=False), AGAIN, LAST)
    assert trained(PLAIN, "all", *turns) == ["no<|im_end|>"]
    turns = (USER, Turn("assistant", ("yes",), train=True), AGAIN, LAST)
    assert trained(PLAIN, "last", *turns) == ["yes<|im_end|>", "no<|im_end|>"]
