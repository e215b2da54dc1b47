"""Parts of a record that the chat template does not write: tools, calls, reasoning.

Each call and each thought has a mark around its name or text in the marked rendering. What has a
mark that does not come out is not written. Of reasoning the last one counts, since templates such
as Qwen3's leave out earlier ones by design.
"""

from __future__ import annotations

from collections import Counter

from packidx.errors import BadRecord
from packidx.processor.chat_template.marks import REASONING, SPOKEN, Shown
from packidx.records.conversation import Conversation


def says_more(conversation: Conversation) -> bool:
    """Return True if a record has tools, calls, reasoning, or a system prompt in the middle."""
    return (
        bool(conversation.tools)
        or any(turn.role == "system" for turn in conversation.turns[1:])
        or any(
            turn.extra.get(key) for turn in conversation.turns for key in turn.extra.keys() & SPOKEN
        )
    )


def check_written(conversation: Conversation, text: str, shown: Shown, writes_tools: bool) -> None:
    """Raise a BadRecord (``not_rendered``) if a template leaves out tools, calls, reasoning, or a
    system prompt in the middle.

    Args:
        conversation: the record.
        text: its rendering.
        shown: the same with marks.
        writes_tools: False if it leaves out tools.
    """
    late = [turn for turn in conversation.turns[1:] if turn.role == "system"]
    if any(part.strip() not in text for turn in late for part in turn.texts):
        what = "the chat template leaves out a system prompt behind the first turn"
        raise BadRecord("not_rendered", f"{what}: a --transform puts it elsewhere")
    seen = {each.number for each in shown.stretches}
    written = Counter(place for number, place in shown.further.items() if number in seen)
    lost, thought = set[str]() if writes_tools else {"tools"}, dict[str, int]()
    for number, turn in enumerate(conversation.turns):
        for key in turn.extra.keys() & SPOKEN:
            value = turn.extra[key]
            value = value.strip() if isinstance(value, str) else value
            if key in REASONING and value:
                thought = {key: number}
            elif written[number, key] < (len(value) if isinstance(value, list) else bool(value)):
                lost.add(key)
    for key, number in thought.items():
        lost |= set() if any(written[number, name] for name in REASONING) else {key}
    if lost:
        what = f"the chat template does not write {' and '.join(sorted(lost))}"
        cure = "name a processor whose template does"
        if all(turn.parts for turn in conversation.turns if lost & turn.extra.keys()):
            cure += f", or give {' '.join(f'--ignore {name}' for name in sorted(lost))}"
        raise BadRecord("not_rendered", f"{what} of the record: {cure}")
