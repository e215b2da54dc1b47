"""What a chat template asks of texts, read from its syntax tree.

A template is rendered once for all records that it treats alike, with marks in place of their
texts (`packidx.processor.chat_template.skeleton`). A mark answers like a text to all but these:
whether it holds one of the template's own words, or is one, and what it is cut at. So a text is
marked around the words that it may be cut at, and one that holds another word which is looked for
is rendered by Jinja. What a template could tell texts apart by otherwise (their length, their case)
is not followed: Jinja renders all records of such a template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2.nodes as n

_STRIPS = {"strip": 0, "lstrip": 0, "rstrip": 0, "trim": 0}
_CUTS = {
    *("split", "rsplit", "partition", "rpartition", "replace", "startswith", "endswith"),
    *("removeprefix", "removesuffix", "find", "rfind", "index", "count"),
}
"""Methods that look for the words they are given."""
_METHODS = {*_STRIPS, *_CUTS, "get", "items", "keys", "values", "append", "join", "update", "pop"}
_FILTERS = {
    *("trim", "length", "count", "tojson", "string", "list", "first", "last", "selectattr"),
    *("rejectattr", "select", "reject", "map", "join", "default", "d", "items", "dictsort", "safe"),
    *("replace", "indent", "sum", "min", "max", "int", "abs"),
}
_CASES = {"upper", "lower", "capitalize", "title"}
_TESTS = {
    *("defined", "undefined", "none", "mapping", "string", "number", "integer", "float", "boolean"),
    *("true", "false", "callable", "iterable", "sequence", "equalto", "eq", "==", "ne", "!=", "in"),
    *("odd", "even", "divisibleby"),
}
_SHORTER = {"length", "count"}
_CONTENT = {"content", "text", "reasoning_content", "reasoning", "thinking"}
_CASELESS = {"role", "type"}
"""Keys of what is no text."""
_NAME = re.compile(r"\w+")
MARKS = "\ue000\ue001\ue002\ue003"
"""Private-use characters that stand around a mark, and around ``{% generation %}`` blocks."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a template asks of texts."""

    held: tuple[str, ...]
    """Words that are looked for in texts."""
    cut: tuple[str, ...]
    """Words that a text may be cut at."""
    equal: frozenset[str]
    """Words that texts are compared with."""
    pieces: re.Pattern[str] | None
    """Finds words to cut at with the white space beside them."""
    strips: tuple[str | None, ...]
    """Characters that are stripped from texts; None for white space."""
    tail: re.Pattern[str] | None
    """Matches the end of a cut word: a text that begins so may make one behind another text."""
    head: re.Pattern[str] | None
    """Finds the beginning of a cut word at the end of a text."""
    edges: str
    """Characters without which `tail` and `head` find nothing."""
    distinct: bool
    """Whether texts are compared with one another."""


def asked_by(template: n.Template, source: str) -> Asked | None:
    """What `template` asks of texts; None where that cannot be told."""
    found = _Asked(template)
    try:
        for node in template.body:
            found.visit(node)
    except _Unknown:
        return None
    if any(mark in source for mark in MARKS):
        return None
    cut = {word.strip() or word for word in found.cut} - {""}
    held = {word.strip() or word for word in found.held} - {"", *cut}
    joined = (held | cut) if found.joins else cut
    starts = [word for word in joined if found.joins or not word[0].isalnum()]
    ends = [word for word in joined if found.joins or not word[-1].isalnum()]
    heads = {re.escape(word[:i]) for word in starts for i in range(1, len(word))}
    tails = {re.escape(word[i:]) for word in ends for i in range(1, len(word))}
    words = "|".join(map(re.escape, _longest_first(cut)))
    return Asked(
        tuple(sorted(held)),
        tuple(sorted(cut)),
        frozenset(found.equal),
        re.compile(f"(?:\\s*(?:{words}))+\\s*") if words else None,
        (None, *sorted(found.strips)),
        re.compile("|".join(_longest_first(tails))) if tails else None,
        re.compile(f"(?:{'|'.join(_longest_first(heads))})\\Z") if heads else None,
        "".join(sorted({word[0] for word in starts} | {word[-1] for word in ends})),
        found.distinct,
    )


def _longest_first(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(words, key=lambda word: (-len(word), word)))


class _Unknown(Exception):
    """A template does what is not followed."""


class _Asked:
    """Walks a template."""

    def __init__(self, template: n.Template) -> None:
        self.words, self.texts = _words(template), _texts(template)
        self._decides = False
        self.distinct = False
        self.joins = False
        self.held: set[str] = set()
        self.cut: set[str] = set()
        self.equal: set[str] = set()
        self.strips: set[str] = set()

    def visit(self, node: n.Node) -> None:
        visit = getattr(self, f"_{type(node).__name__}", None)
        if visit is not None:
            visit(node)
        else:
            for child in node.iter_child_nodes():
                self.visit(child)

    def _all(self, nodes: Iterable[n.Node]) -> None:
        for node in nodes:
            self.visit(node)

    def _Const(self, node: n.Const) -> None:
        """A word that goes somewhere: it may be looked for, and compared with."""
        if isinstance(node.value, str):
            self.held.add(node.value)
            self._compare(node.value)

    def _compare(self, word: str) -> None:
        self.equal.add(word.strip())
        if word.strip() and not _NAME.fullmatch(word):
            self.cut.add(word)  # a part of a text may be compared with it

    # -- words that are only written ---------------------------------------------------------------

    def _Output(self, node: n.Output) -> None:
        for child in node.nodes:
            self._written(child)

    def _written(self, node: n.Node | None) -> None:
        if isinstance(node, n.Add):
            self._written(node.left)
            self._written(node.right)
        elif isinstance(node, n.Concat):
            for child in node.nodes:
                self._written(child)
        elif isinstance(node, n.CondExpr):
            self.visit(node.test)
            self._written(node.expr1)
            self._written(node.expr2)
        elif node is not None and not isinstance(node, n.Const | n.TemplateData):
            self.visit(node)

    # -- questions ---------------------------------------------------------------------------------

    def _Assign(self, node: n.Assign) -> None:
        self._deciding(node.node)

    def _If(self, node: n.If) -> None:
        self._deciding(node.test)
        self._all([*node.body, *node.elif_, *node.else_])

    def _deciding(self, node: n.Node) -> None:
        """What is written in another case comes out of marks changed; what is compared does not."""
        before, self._decides = self._decides, True
        self.visit(node)
        self._decides = before

    def _Add(self, node: n.Add) -> None:
        self.joins |= self.is_text(node.left) and self.is_text(node.right)
        self._all([node.left, node.right])

    def _Concat(self, node: n.Concat) -> None:
        self.joins |= sum(map(self.is_text, node.nodes)) > 1
        self._all(node.nodes)

    def _Compare(self, node: n.Compare) -> None:
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        for left, operand in zip(sides, node.ops, strict=False):
            if operand.op in ("in", "notin"):
                self._in(left, operand.expr)
            else:
                self._compared(left, operand.expr)

    def _in(self, item: n.Node, container: n.Node) -> None:
        if isinstance(item, n.Const):
            self.held.update([item.value] if isinstance(item.value, str) else [])
        else:
            self.visit(item)
        if isinstance(container, n.Const) and not isinstance(item, n.Const) and self.is_text(item):
            raise _Unknown
        if isinstance(container, n.List | n.Tuple):
            for member in container.items:
                self._compared(item, member)
        elif not isinstance(container, n.Const):
            self.visit(container)

    def _compared(self, left: n.Node, right: n.Node) -> None:
        for side, other in ((left, right), (right, left)):
            if isinstance(side, n.Const):
                if isinstance(side.value, str):
                    self._compare(side.value)
                elif type(side.value) is int and side.value and self._measures(other):
                    raise _Unknown
            else:
                self.visit(side)
        both = not isinstance(left, n.Const) and not isinstance(right, n.Const)
        self.distinct |= both and self.is_text(left) and self.is_text(right)

    def _Test(self, node: n.Test) -> None:
        if node.name not in _TESTS:
            raise _Unknown
        self._all(node.iter_child_nodes())

    # -- what reads or makes texts -----------------------------------------------------------------

    def _Getitem(self, node: n.Getitem) -> None:
        self.visit(node.node)
        if not isinstance(node.arg, n.Const):
            self.visit(node.arg)

    def _Filter(self, node: n.Filter) -> None:
        if node.name in _CASES:
            if self._decides and (node.node is None or self.is_said(node.node)):
                raise _Unknown
        elif node.name not in _FILTERS:
            raise _Unknown
        if node.name == "trim":
            self._stripped(node.args)
        elif node.name == "replace":
            self._looked_for(node.args)
        elif node.name not in ("tojson", "join", "indent"):
            self._all(node.args)
        self._all(keyword.value for keyword in node.kwargs if node.name != "tojson")
        if node.node is not None:
            self.visit(node.node)

    def _Call(self, node: n.Call) -> None:
        called = node.node
        if isinstance(called, n.Name) and called.name in ("raise_exception", "strftime_now"):
            self._all(arg for arg in node.args if not isinstance(arg, n.Const))
            return
        if isinstance(called, n.Getattr):
            self.visit(called.node)
            name = called.attr
            if name in _CASES and not (self._decides and self.is_said(called.node)):
                return
            if name not in _METHODS:
                raise _Unknown
            if name in _STRIPS:
                self._stripped(node.args)
                return
            if name in _CUTS and self.is_text(called.node):
                self._looked_for(node.args)
                return
            self.distinct |= name in ("index", "count")
            if name in ("get", "pop"):
                self._all(node.args[1:])
                return
        elif isinstance(called, n.Name):
            if called.name == "lipsum":
                raise _Unknown
        else:
            self.visit(called)
        self._all(node.args)
        self._all(keyword.value for keyword in node.kwargs)
        self._all(extra for extra in (node.dyn_args, node.dyn_kwargs) if extra is not None)

    def is_text(self, node: n.Node) -> bool:
        """Whether an expression may be made of a text."""
        return not self.texts.isdisjoint(_names(node))

    def is_said(self, node: n.Node) -> bool:
        """Whether an expression may be a text, and not what kind of message it is of."""
        return _key(node) not in _CASELESS and self.is_text(node)

    def _measures(self, node: n.Node) -> bool:
        """Whether an expression may be made of the length of a text."""
        return any(
            isinstance(item, n.Filter)
            and item.name in _SHORTER
            and item.node is not None
            and self.is_text(item.node)
            for item in _within(node)
        )

    def _stripped(self, args: Sequence[n.Node]) -> None:
        for arg in args:
            if not isinstance(arg, n.Const) or not isinstance(arg.value, str):
                raise _Unknown
            if arg.value.isspace():
                self.strips.add(arg.value)
            else:
                self.cut.update(arg.value)

    def _looked_for(self, args: Sequence[n.Node]) -> None:
        for arg in args:
            for word in arg.items if isinstance(arg, n.Tuple | n.List) else [arg]:
                if isinstance(word, n.Name) and word.name in self.words:
                    self.cut |= self.words[word.name]
                elif not isinstance(word, n.Const):
                    raise _Unknown
                elif isinstance(word.value, str):
                    self.cut.add(word.value)
        if not args:
            raise _Unknown  # cut at white space


def _within(node: n.Node) -> Iterator[n.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _within(child)


def _key(node: n.Node) -> Any:
    if isinstance(node, n.Getattr):
        return node.attr
    return node.arg.value if isinstance(node, n.Getitem) and isinstance(node.arg, n.Const) else None


def _bindings(template: n.Template) -> Iterator[tuple[n.Node, n.Node, bool]]:
    """Targets of assignments and loops, what they are given, and whether that is looped over."""
    for node in template.find_all(n.Assign):
        yield node.target, node.node, False
    for loop in template.find_all(n.For):
        yield loop.target, loop.iter, True


def _words(template: n.Template) -> dict[str, set[str]]:
    """Names that are nothing but words of the template's own."""
    words: dict[str, set[str]] = {}
    others = {arg.name for macro in template.find_all(n.Macro) for arg in macro.args}
    for target, given, is_loop in _bindings(template):
        items = given.items if isinstance(given, n.List | n.Tuple) else [given]
        said = [item.value for item in items if isinstance(item, n.Const)]
        is_listed = isinstance(given, n.List | n.Tuple)
        if isinstance(target, n.Name) and is_loop == is_listed and len(said) == len(items):
            words.setdefault(target.name, set()).update(map(str, said))
        else:
            others |= _names(target)
    return {name: said for name, said in words.items() if name not in others}


def _texts(template: n.Template) -> set[str]:
    """Names and keys of what may be made of a text."""
    texts, size = set(_CONTENT), 0
    macros = {macro.name: macro for macro in template.find_all(n.Macro)}
    while len(texts) > size:
        size = len(texts)
        for target, given, _ in _bindings(template):
            if _names(given) & texts:
                texts |= _names(target) - {"ns", "namespace"}
        for call in template.find_all(n.Call):
            macro = macros.get(call.node.name) if isinstance(call.node, n.Name) else None
            for arg, value in zip(macro.args if macro else (), call.args, strict=False):
                if _names(value) & texts:
                    texts.add(arg.name)
    return texts


def _names(node: n.Node) -> set[Any]:
    """The names and keys in an expression."""
    found = {_key(item) for item in _within(node)} - {None}
    found |= {item.name for item in _within(node) if isinstance(item, n.Name)}
    return found | {item.attr for item in _within(node) if isinstance(item, n.NSRef)}
