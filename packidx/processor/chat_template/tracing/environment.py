"""The Jinja environment of chat templates, for `Traced` texts.

Jinja turns values into plain strings in a few places: where it writes them, joins them, and calls
filters, tests and functions. Each of these is replaced here by one that keeps traced texts traced,
or gives up. The rest is Python's operators, which `Traced` answers itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NoReturn

import jinja2.filters
import jinja2.nodes
import jinja2.runtime

from packidx.processor.chat_template.environment import (
    Generation,
    TemplateDict,
    TemplateNamespace,
    chat_environment,
    now,
    to_json,
)
from packidx.processor.chat_template.limits import Buffer, LimitedEnvironment, LimitedGenerator
from packidx.processor.chat_template.tracing.trace import Block, Trace, Untraceable
from packidx.processor.chat_template.tracing.traced import Traced, fragments_of, join_fragments
from packidx.processor.chat_template.tracing.values import Length, holds_traced, untangle

_CONTAINERS = {
    *("list", "first", "last", "map", "select", "reject", "selectattr", "rejectattr", "items"),
    *("default", "d"),
}
"""Filters that hand on what they are given."""
_KINDS = {
    *("defined", "undefined", "none", "mapping", "string", "number", "integer", "float"),
    *("boolean", "true", "false", "callable"),
}
"""Tests whose answer is the same for every text."""
_OPERATORS = {"==", "eq", "equalto", "!=", "ne"}
"""Tests that are Python's operators."""
_SCOPES = {"_loop_vars", "_block_vars"}
"""What Jinja hands to a call besides its arguments: variables in scope, for its context alone."""


class _Generator(LimitedGenerator):
    """Writes code that calls the environment where plain strings would be made."""

    begin_concat = "environment.concat(map(environment.show, ("

    def _output_child_pre(self, node: Any, frame: Any, finalize: Any) -> None:
        if frame.eval_ctx.volatile or frame.eval_ctx.autoescape or finalize.src is not None:
            raise Untraceable("autoescaping")
        self.write("environment.show(")

    def _output_child_post(self, node: Any, frame: Any, finalize: Any) -> None:
        self.write(")")

    def visit_Compare(self, node: Any, frame: Any) -> None:
        ops = [operand.op for operand in node.ops]
        if not {"in", "notin"} & set(ops):
            super().visit_Compare(node, frame)
            return
        if len(ops) > 1:
            raise Untraceable("a chain of comparisons with `in`")
        self.write("(not " if ops == ["notin"] else "(")
        self.write("environment.holds(")
        self.visit(node.expr, frame)
        self.write(", ")
        self.visit(node.ops[0].expr, frame)
        self.write("))")


class _TracedGeneration(Generation):
    """``{% generation %}`` with its borders between the fragments."""

    def _body(self, caller: jinja2.runtime.Macro) -> str:
        environment = self.environment
        assert isinstance(environment, TracingEnvironment)
        text = fragments_of(caller())
        return join_fragments(environment.current, (Block(True), *text, Block(False)))


class TracingEnvironment(LimitedEnvironment):
    """Renders `Traced` texts to a `Traced` text."""

    code_generator_class = _Generator
    current: Trace
    """The rendering under way."""

    @staticmethod
    def show(value: Any) -> str:
        """A value as it is written: `str`, but for traced texts."""
        return value if isinstance(value, Traced) else str(value)

    @staticmethod
    def concat(values: Iterable[str]) -> str:
        """Texts as one."""
        kept = Buffer()
        kept.extend(values)
        trace = next((value._trace for value in kept if isinstance(value, Traced)), None)
        if trace is None:
            return "".join(kept)
        return join_fragments(trace, (item for value in kept for item in fragments_of(value)))

    @staticmethod
    def holds(item: Any, container: Any) -> bool:
        """``item in container``"""
        if isinstance(container, str) and not isinstance(container, Traced) and holds_traced(item):
            raise Untraceable("a text is looked for in another one")
        return item in container

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(function, "__self__", None)
        if not isinstance(owner, Traced | TracingEnvironment) and not _hands_on(function):
            if isinstance(owner, str):
                holds_traced(owner)
            given = [kwargs[name] for name in kwargs if name not in _SCOPES]
            if holds_traced(args) or holds_traced(given):
                raise Untraceable(f"{getattr(function, '__name__', function)!s}() of a text")
        return super().call(context, function, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator != "+" and (holds_traced(left) or holds_traced(right)):
            raise Untraceable(f"a text {operator} something")
        return super().call_binop(context, operator, left, right)

    def today(self, layout: str) -> str:
        """``strftime_now``: the answer to a question, asked again for each record."""
        if holds_traced(layout):
            raise Untraceable("strftime_now of a text")
        answer: str = self.current.ask(("now", layout), lambda _: now(layout))
        return answer


def tracing_environment() -> TracingEnvironment:
    """`chat_environment`, for traced texts."""
    environment = chat_environment(TracingEnvironment, _TracedGeneration)
    assert isinstance(environment, TracingEnvironment)
    for name, function in environment.filters.items():
        if name not in _CONTAINERS:
            environment.filters[name] = _plain_only(name, function)
    for name, test in environment.tests.items():
        if name not in _OPERATORS:
            environment.tests[name] = _test(name, test)
    environment.filters |= {
        "dictsort": _dictsort,
        "join": _join,
        "length": _length,
        "count": _length,
        "string": environment.show,
        "trim": _method("strip", environment.filters["trim"]),
        "upper": _method("upper", environment.filters["upper"]),
        "lower": _method("lower", environment.filters["lower"]),
        "capitalize": _method("capitalize", environment.filters["capitalize"]),
        "replace": _replace(environment.filters["replace"]),
        "reverse": _reverse,
        "tojson": _json,
    }
    environment.tests["in"] = environment.holds
    environment.globals["strftime_now"] = environment.today
    environment.globals["lipsum"] = _refuse
    return environment


def _hands_on(function: Any) -> bool:
    """Whether a function is the template's own, or only keeps what it is given."""
    keeps = (jinja2.runtime.Macro, jinja2.utils.Cycler, TemplateDict)
    return function is TemplateNamespace or isinstance(function, keeps)


def _refuse(*args: Any, **kwargs: Any) -> NoReturn:
    raise Untraceable("chance")


def _plain_only(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that no traced text may reach."""

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if name == "random" or any(map(_reaches, args)) or any(map(_reaches, kwargs.values())):
            raise Untraceable(f"{name} of a text")
        return function(*args, **kwargs)

    return checked


def _reaches(value: Any) -> bool:
    """Whether a filter that is given `value` could see a traced text: what yields may hold any."""
    return holds_traced(value) or hasattr(value, "__next__")


def _test(name: str, test: Any) -> Callable[..., Any]:
    checked = _plain_only(name, test)

    @wraps(test)
    def answered(*args: Any, **kwargs: Any) -> Any:
        traced = [isinstance(arg, Traced) for arg in args]
        if traced == [True] and name in ("iterable", "sequence"):
            return True
        if name in _KINDS and not any(isinstance(arg, Length) for arg in args):
            return test(*args, **kwargs)
        if name in ("iterable", "sequence") and not any(traced):
            return test(*args, **kwargs)  # a container's answer, whatever it holds
        return checked(*args, **kwargs)

    return answered


def _method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is a method of str."""

    def applied(value: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(value, Traced):
            return getattr(value, name)(*args, **kwargs)
        return function(value, *args, **kwargs)

    return applied


def _replace(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def replaced(context: Any, value: Any, *args: Any) -> Any:
        if isinstance(value, Traced) and len(args) == 2 and all(type(a) is str for a in args):
            return value.replace(*args)
        return function(context, value, *args)

    return replaced


def _dictsort(value: Any, *args: Any, **kwargs: Any) -> Any:
    if holds_traced(value) and (type(value) is not dict or "value" in (*args, *kwargs.values())):
        raise Untraceable("dictsort by texts")
    return jinja2.filters.do_dictsort(value, *args, **kwargs)


def _length(value: Any) -> Any:
    return Length(value) if isinstance(value, Traced) else len(value)


def _reverse(value: Any) -> Any:
    if isinstance(value, str) and holds_traced(value):
        raise Untraceable("reverse of a text")
    return jinja2.filters.do_reverse(value)


@jinja2.pass_environment
def _join(environment: TracingEnvironment, value: Any, d: str = "", attribute: Any = None) -> str:
    if isinstance(value, Traced):
        raise Untraceable("join of a text")
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    items = [environment.show(item) for item in value]
    between = environment.show(d)
    return environment.concat([part for item in items for part in (between, item)][1:])


def _json(value: Any, *args: Any, **kwargs: Any) -> str:
    if _reaches(args) or _reaches(kwargs) or not _reaches(value):
        return to_json(value, *args, **kwargs)
    key, fill, parents = untangle(value)
    trace = _trace_in(value)
    options = ("tojson", key, repr(args), repr(sorted(kwargs.items())))
    made = trace.derive(options, lambda v: to_json(fill(v), *args, **kwargs), parents)
    return Traced(trace, (made,))


def _trace_in(value: Any) -> Trace:
    if isinstance(value, Traced):
        return value._trace
    for item in list(value.values()) if type(value) is dict else value:
        if holds_traced(item):
            return _trace_in(item)
    raise Untraceable("json of what is no text")
