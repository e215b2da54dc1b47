"""The Jinja environment of chat templates: transformers 5.23's (`utils/chat_template_utils.py`)."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from datetime import datetime
from types import FrameType
from typing import Any, TypeVar

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from packidx.errors import BadRecord, LimitError


class Generation(jinja2.ext.Extension):
    """``{% generation %} … {% endgeneration %}``: rendered as its body, between `borders`."""

    tags = {"generation"}
    borders = ("", "")

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: jinja2.runtime.Macro) -> str:
        before, after = self.borders
        return before + str(caller()) + after


class TemplateDict:
    """``dict`` without its attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    """Refuses underscore-prefixed attributes."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # so that `namespace(self=…)` works
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot have the attribute {name!r}")


def _raise(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``tojson``, without HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def now(layout: str) -> str:
    """``strftime_now``"""
    return datetime.now().strftime(layout)


def chat_environment(generation: type[Generation] = Generation) -> jinja2.Environment:
    """A sandboxed environment that renders chat templates as transformers 5.23 does."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=_raise, strftime_now=now, dict=TemplateDict(), namespace=TemplateNamespace
    )
    return environment


MAX_TEXT = 1 << 27
"""Characters of a text: some 30 million tokens, above what any model is trained on."""
MAX_SECONDS = 60.0
"""CPU time of one conversation's rendering; the usual one takes some ten microseconds."""
Result = TypeVar("Result")


class OutOfTime(BaseException):
    """A rendering took over `MAX_SECONDS`; nothing that catches a template's errors catches it."""


def in_time(call: Callable[..., Result], *args: Any) -> Result:
    """``call(*args)``, which is not waited for without end.

    Processes that count do so in their main thread; in any other one there is no limit.

    Raises:
        LimitError: it took more than `MAX_SECONDS` of CPU time.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "setitimer"):
        return call(*args)
    try:
        before = signal.signal(signal.SIGVTALRM, _stop)
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_SECONDS)
        try:
            return call(*args)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
    except OutOfTime:
        raise LimitError(
            f"the chat template has not come to an end after {MAX_SECONDS:g} s of work: "
            "mend it, or leave the record out"
        ) from None


def _stop(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


def check_size(text: str) -> None:
    """Refuse a text that is too long.

    Raises:
        BadRecord: ``template``, it has more than `MAX_TEXT` characters.
    """
    if len(text) > MAX_TEXT:
        raise BadRecord(
            "template", f"the chat template makes a text of more than {MAX_TEXT:,} characters"
        )


def check_unicode(text: str) -> None:
    """Refuse a text that cannot be encoded.

    Raises:
        BadRecord: ``bad_text``, it holds half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRecord("bad_text", f"the text is not valid Unicode: {error}") from error
