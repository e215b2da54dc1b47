"""A template rendered under watch: what it asks of a record's texts is written down.

A template is rendered once for all records of a shape, with marks (`HOLE` between two) in place of
their texts. Whatever it does with a text that holds a mark is seen here: it may write it, strip
white space off its ends, ask whether there is any, and put texts together, all of which comes out
alike for all texts. It may look for words, or cut there: these are noted, and a text that holds one
is not put into the rendering. At anything else, such as the length of a text, the watch ends with
`Unlike`: then Jinja renders each record. So a text that holds none of the words takes the same way
through the template as the marks did.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

import jinja2
import jinja2.nodes as n
import jinja2.sandbox
from jinja2.runtime import Macro
from jinja2.visitor import NodeTransformer

from packidx.processor.chat_template.environment import Generation, chat_environment
from packidx.processor.chat_template.marks import BORDERS, HOLE, MARKED

_METHODS = {
    **dict.fromkeys(("strip", "lstrip", "rstrip"), "strip"),
    **dict.fromkeys(("split", "rsplit", "partition", "rpartition", "replace", "count"), "cut"),
    **dict.fromkeys(("startswith", "endswith", "removeprefix", "removesuffix"), "cut"),
    "join": "join",
}
_FILTERS = {
    **dict.fromkeys(("default", "d", "string"), "write"),
    **dict.fromkeys(("length", "count", "first", "last", "list", "reverse", "join"), "list"),
    **dict.fromkeys(("selectattr", "rejectattr", "select", "reject", "map"), "list"),
    "trim": "strip",
    "replace": "cut",
}
_TESTS = {
    **dict.fromkeys(("defined", "undefined", "none", "true", "false", "callable"), "write"),
    **dict.fromkeys(("mapping", "string", "iterable", "sequence", "boolean"), "write"),
    **dict.fromkeys(("number", "integer", "float"), "write"),
    **dict.fromkeys(("eq", "equalto", "==", "ne", "!="), "eq"),
    "in": "in",
}
"""What may be done with a text: it is written, white space is stripped off its ends, it is cut at
words or compared with one. What is done with a list may not be done with a text."""
_OF_JINJA = {"_loop_vars", "_block_vars"}
"""What Jinja gives a function besides its arguments."""
_MARK = re.compile(f"[\U000f0000-\U000fffef]{HOLE}([\U00100000-\U0010ffff])")


class Unlike(Exception):
    """A template does with a text what does not come out alike for all."""


class Bordered(Generation):
    """``{% generation %}`` blocks between `BORDERS`."""

    borders = BORDERS


def watched(source: str, globals_: Mapping[str, Any], words: set[str]) -> jinja2.Template:
    """Return a template that adds to `words` those it looks for in marked texts.

    Its rendering raises `Unlike` where marks do not stand for all texts.
    """
    environment = chat_environment(Bordered, _Watch)
    assert isinstance(environment, _Watch)
    environment.words = words
    environment.globals.update(globals_)
    for functions, allowed in ((environment.filters, _FILTERS), (environment.tests, _TESTS)):
        for name, function in functions.items():
            functions[name] = environment.guarded(allowed.get(name, name), function)
    tree: n.Template = _Rewritten(environment).visit(environment.parse(source))
    code = environment.compile(tree)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def is_marked(value: Any) -> bool:
    """Return whether a value is a text with a mark, or holds one."""
    if isinstance(value, str):
        return MARKED.search(value) is not None
    if isinstance(value, Mapping):
        return any(map(is_marked, value.values())) or any(map(is_marked, value))
    if isinstance(value, list | tuple):
        return any(map(is_marked, value))
    return hasattr(value, "__next__")  # nobody has looked yet what it gives


class _Rewritten(NodeTransformer):
    """Has the environment do what Jinja compiles to plain Python."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment

    def _call(self, name: str, *args: Any) -> n.Call:
        attribute = n.EnvironmentAttribute(name)
        call = n.Call(attribute, list(args), [], None, None)
        call.set_environment(self._environment)
        return call

    def visit_Compare(self, node: n.Compare) -> n.Node:
        self.generic_visit(node)
        operands = [part for each in node.ops for part in (n.Const(each.op), each.expr)]
        return n.And(self._call("compared", node.expr, *operands), node)

    def visit_For(self, node: n.For) -> n.Node:
        self.generic_visit(node)
        node.iter = self._call("whole", node.iter)
        return node

    def visit_Getitem(self, node: n.Getitem) -> n.Node:
        self.generic_visit(node)
        if isinstance(node.arg, n.Slice):
            node.node = self._call("whole", node.node)
        return node


class _Watch(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """An environment that sees what is done with marked texts."""

    intercepted_binops = frozenset("%")
    words: set[str]

    def compared(self, left: Any, *operands: Any) -> bool:
        """Look at what is compared: ``left op right op right …``."""
        for op, right in zip(operands[::2], operands[1::2], strict=True):
            self._compared(left, op, right)
            left = right
        return True

    def _compared(self, left: Any, op: str, right: Any) -> None:
        if not is_marked(left) and not is_marked(right):
            return
        if op in ("in", "notin") and isinstance(right, list | tuple):
            for item in right:
                self._compared(left, "eq", item)
        elif op in ("in", "notin") and isinstance(right, str):
            self._looked_for(left, right)
        elif op in ("in", "notin") and isinstance(right, Mapping) and not is_marked(left):
            pass  # keys hold no marks
        elif op in ("eq", "ne"):
            if is_marked(right):
                left, right = right, left
            if is_marked(right) or isinstance(right, list | tuple | Mapping):
                raise Unlike("texts are compared with one another")
            if isinstance(left, str) and isinstance(right, str):
                self._looked_for(right, left)
        else:
            raise Unlike("texts are ordered")

    def _looked_for(self, word: Any, text: str) -> None:
        """Note that a word is looked for in a text, as the runs of it that are not white space: the
        ends of marks are none, either. A run must be in one core, or in several that follow one
        another, if it is not in the template's own words alone.
        """
        if isinstance(word, tuple | list):
            for each in word:
                self._looked_for(each, text)
            return
        if not isinstance(word, str) or is_marked(word):
            raise Unlike("what is looked for is not a word")
        pieces = _MARK.split(text)
        literals, marks = pieces[::2], pieces[1::2]
        if any(map(is_marked, literals)):
            raise Unlike("a part of a text")
        if any(ord(mark) + 1 != ord(other) for mark, other in zip(marks, marks[1:], strict=False)):
            raise Unlike("texts in another order")
        runs = word.split() or ([word] if word else [])
        for run in runs if marks and word.strip() else ():
            if any(_touches(run, literal) for literal in literals):
                raise Unlike("a word of the template's and a text's")
        self.words.update(runs)

    def whole(self, value: Any) -> Any:
        """Return what is looped over or sliced, which may be no text and no message."""
        if isinstance(value, str | Mapping) and is_marked(value):
            raise Unlike("a text by its characters, or a message by its keys")
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        by_place = isinstance(obj, str) and not isinstance(argument, str)
        if is_marked(argument) or (by_place and is_marked(obj)):
            raise Unlike("a character of a text")
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if is_marked(left) or is_marked(right):
            raise Unlike("a text is formatted")
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if owner is __self:
            return __obj(*args)
        given = [value for name, value in kwargs.items() if name not in _OF_JINJA]
        has_marks = is_marked(args) or is_marked(given)
        if isinstance(owner, str) and (has_marks or is_marked(owner)):
            __self._look(_METHODS.get(name, name), owner, *args)
        elif has_marks and not isinstance(__obj, Macro) and not __self._takes_any(__obj):
            raise Unlike("a function of a text")
        elif isinstance(owner, Mapping) and name != "get" and is_marked(owner):
            raise Unlike("a message as a whole")
        return super().call(__context, __obj, *args, **kwargs)

    def _takes_any(self, function: Any) -> bool:
        names = ("dict", "namespace", "raise_exception")
        return any(function is self.globals[name] for name in names)

    def guarded(self, kind: str, function: Any) -> Callable[..., Any]:
        """Return a filter or a test that sees marked texts."""
        skipped = hasattr(function, "jinja_pass_arg")

        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            given = *args[skipped:], *kwargs.values()
            if is_marked(given):
                self._look(kind, *given)
            return function(*args, **kwargs)

        return guarded

    def _look(self, kind: str, value: Any, *others: Any) -> None:
        """Look at what is done with values of which one is marked."""
        if kind in ("eq", "in"):
            self._compared(value, kind, *others)
        elif kind in ("list", "join"):
            self.whole(others[0] if kind == "join" else value)
        elif kind == "cut" and others and isinstance(value, str):
            for word in others:
                if not isinstance(word, int):
                    self._looked_for(word, value)
        elif kind == "strip":
            if any(not isinstance(chars, str) or chars.strip() for chars in others):
                raise Unlike("more than white space is stripped")
        elif kind != "write":
            raise Unlike(f"{kind} of a text")


def _touches(run: str, literal: str) -> bool:
    """Return whether a text beside a literal could make a word together with it."""
    cuts = range(1, len(run))
    if any(literal.endswith(run[:cut]) or literal.startswith(run[cut:]) for cut in cuts):
        return True
    return bool(literal) and literal in run
