"""Preference data in the forms that trainers document."""

from __future__ import annotations

from typing import Any

ASKED = [{"role": "user", "content": "Which?"}]
GOOD = [{"role": "assistant", "content": "This."}]
BAD = [{"role": "assistant", "content": "That."}]

PREFERENCES: dict[str, dict[str, Any]] = {
    "TRL, texts": {"prompt": "Which?", "chosen": "This.", "rejected": "That."},
    "TRL, whole texts": {"chosen": "Which? This.", "rejected": "Which? That."},
    "TRL, messages": {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
    "TRL, whole conversations": {"chosen": ASKED + GOOD, "rejected": ASKED + BAD},
    "TRL, with images": {"prompt": ASKED, "images": ["a"], "chosen": GOOD, "rejected": BAD},
    "UltraFeedback": {"messages": ASKED + GOOD, "chosen": ASKED + GOOD, "rejected": ASKED + BAD},
    "RLAIF-V": {"image": "a", "question": "Which?", "chosen": "This.", "rejected": "That."},
    "LLaMA-Factory, sharegpt": {
        "conversations": [{"from": "human", "value": "Which?"}],
        "chosen": {"from": "gpt", "value": "This."},
        "rejected": {"from": "gpt", "value": "That."},
    },
    "LLaMA-Factory, alpaca": {
        "instruction": "Which?",
        "input": "",
        "chosen": "This.",
        "rejected": "That.",
    },
    "LLaMA-Factory, KTO": {"messages": ASKED + GOOD, "kto_tag": False},
    "ms-swift": {"messages": ASKED + GOOD, "rejected_response": "That."},
    "ms-swift, several": {"messages": ASKED + GOOD, "rejected_response": ["That.", "Neither."]},
    "ms-swift, messages": {"messages": ASKED + GOOD, "rejected_messages": ASKED + BAD},
    "ms-swift, query and response": {
        "query": "Which?",
        "response": "This.",
        "rejected_response": "That.",
    },
    "LLaMA-Factory, KTO in a table": {"messages": ASKED + GOOD, "kto_tag": "false"},
    "TRL, unpaired": {"prompt": "Which?", "completion": "That.", "label": False},
    "TRL, unpaired, in a table": {"prompt": "Which?", "completion": "That.", "label": "False"},
    "TRL, unpaired, in numbers": {"prompt": "Which?", "completion": "That.", "label": 0},
    "ms-swift, KTO": {"messages": ASKED + BAD, "label": False},
    "ms-swift, KTO of an answer": {"query": "Which?", "response": "That.", "label": False},
}

CHAT: dict[str, Any] = {"messages": ASKED + GOOD}
