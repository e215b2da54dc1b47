"""The Jinja environment of chat templates: transformers 5.23's (`utils/chat_template_utils.py`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from packidx.errors import BadRecord
from packidx.processor.chat_template.marks import BORDERS

_DICT = frozenset(dir(dict))
_OWN = (jinja2.utils.Namespace, jinja2.runtime.LoopContext)


class Generation(jinja2.ext.Extension):
    """``{% generation %} … {% endgeneration %}``: rendered as its body, between `borders`."""

    tags = {"generation"}
    borders = ("", "")

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render_body(self, caller: jinja2.runtime.Macro) -> str:
        before, after = self.borders
        return before + str(caller()) + after


class Bordered(Generation):
    """``{% generation %}`` blocks between `BORDERS`."""

    borders = BORDERS


def _raise_error(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def format_now(layout: str) -> str:
    """``strftime_now``"""
    return datetime.now().strftime(layout)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox of transformers in half the time: it does not guard a message's keys, nor the
    macros, loops and namespaces of the template itself."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict:
            if attribute in obj and attribute not in _DICT:
                return obj[attribute]  # Jinja asks for an attribute first, which a dict has not
        elif type(obj) in _OWN and attribute[0] != "_" and hasattr(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        is_macro = type(obj) is jinja2.runtime.Macro
        if is_macro or obj is jinja2.utils.Namespace:  # as `Context.call`, which asks what it is
            kwargs.pop("_block_vars", None)
            kwargs.pop("_loop_vars", None)
            if not is_macro:
                return obj(*args, **kwargs)
            more = kwargs or obj.caller or obj.catch_kwargs or obj.catch_varargs
            if more or len(args) != obj._argument_count or context.eval_ctx.autoescape:
                return obj(context.eval_ctx, *args, **kwargs)
            return obj._func(*args)  # as `Macro.__call__`
        return super().call(context, obj, *args, **kwargs)


def compile_template(
    source: str, given: Mapping[str, Any], generation: type[Generation] = Generation
) -> Callable[..., str]:
    """Return a function that renders a template with the variables that it is called with, and
    those `given`; it raises a jinja2.TemplateError if it is not valid."""
    template = make_environment(generation).from_string(source)
    always, environment = {**template.globals, **given}, template.environment

    def render(**variables: Any) -> str:  # as `Template.render`, which copies the globals
        context = jinja2.runtime.Context(environment, always | variables, None, template.blocks)
        text = "".join(template.root_render_func(context))
        context.vars.clear()  # macros in it refer to it, so that only garbage collection frees it
        return text

    return render


def make_environment(generation: type[Generation] = Generation) -> jinja2.Environment:
    """A sandboxed environment that renders chat templates as transformers 5.23 does."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals.update(raise_exception=_raise_error, strftime_now=format_now)
    return environment


def check_unicode(text: str) -> None:
    """Refuse a text that cannot be encoded.

    Raises:
        BadRecord: ``bad_text``, it holds half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRecord("bad_text", f"the text is not valid Unicode: {error}") from error
