"""A template, compiled for traced texts."""

from __future__ import annotations

from typing import Any

import jinja2

from packidx.processor.chat_template.tracing.environment import tracing_environment
from packidx.processor.chat_template.tracing.trace import Trace


class Tracer:
    """The template, compiled for traced texts; on first use."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._environment = tracing_environment()
        self._template: jinja2.Template | None = None

    def render(
        self, trace: Trace, messages: list[dict[str, Any]], tools: Any, tokens: dict[str, str]
    ) -> str:
        if self._template is None:
            self._template = self._environment.from_string(self._source)
        self._environment.current = trace
        return self._template.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=False,
            **tokens,
        )
