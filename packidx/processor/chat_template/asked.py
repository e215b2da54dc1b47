"""What a chat template asks of texts, read from its syntax tree.

A template is rendered once for all records that it treats alike, with marks in place of their
texts (`packidx.processor.chat_template.skeleton`). A mark answers like a text to all but these:
whether it holds one of the template's own words, or is one, and what it is cut at. So a text is
marked around the words that it may be cut at, and whether other words that are looked for change
what is written is tried. What a template could tell texts apart by otherwise (their length, their
case) is not followed: Jinja renders all records of such a template.
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
_OF_NUMBERS = {"odd", "even", "divisibleby"}
_PIECES = {"first", "last", "min", "max", "int"}
_CONTENT = {"content", "text", "reasoning_content", "reasoning", "thinking"}
_CASELESS = {"role", "type"}
"""Keys of what is no text."""
_NAME = re.compile(r"\w+")
MARKS = "\ue000\ue001\ue002\ue003"
"""Private-use characters that stand around a mark, and around ``{% generation %}`` blocks."""


@dataclass(frozen=True, slots=True)
class AskedOfTexts:
    """The words and white space that a template tells texts apart by."""

    held: tuple[str, ...]
    """Words that may be looked for in texts, or are keys of what a text is not."""
    cut: tuple[str, ...]
    """Words that a text may be cut at."""
    equal: frozenset[str]
    """Words that texts are compared with."""
    pieces: re.Pattern[str] | None
    """Finds words to cut at with the white space beside them."""
    tail: re.Pattern[str] | None
    """Matches the end of a cut word: a text that begins so may make one behind another text."""
    head: re.Pattern[str] | None
    """Finds the beginning of a cut word at the end of a text."""
    edges: str
    """Characters without which `tail` and `head` find nothing."""
    distinct: bool
    """Whether texts are compared with one another."""


NOTHING = AskedOfTexts((), (), frozenset(), None, None, None, "", False)


def asked_by(template: n.Template, source: str) -> AskedOfTexts | None:
    """Return what `template` asks of texts; None where that cannot be told."""
    try:
        found = _Asked(template)
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
    return AskedOfTexts(
        tuple(sorted(held)),
        tuple(sorted(cut)),
        frozenset(found.equal),
        re.compile(f"(?:\\s*(?:{words}))+\\s*") if words else None,
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
    """Collects what a template asks of texts."""

    def __init__(self, template: n.Template) -> None:
        self.words, self.texts = _words(template), _texts(template)
        self.parts = _parts(template)
        self.distinct = self.joins = False
        self.cut: set[str] = set()
        self.held: set[str] = set()
        self.equal = {word.strip() for word in _strings(template)}
        for test in template.find_all(n.Test):
            if test.name not in _TESTS:
                raise _Unknown
        for filtered in template.find_all(n.Filter):
            self._filter(filtered)
        for call in template.find_all(n.Call):
            self._call(call)
        for compared in template.find_all(n.Compare):
            sides = [compared.expr, *(operand.expr for operand in compared.ops)]
            for left, operand in zip(sides, compared.ops, strict=False):
                self._compared(left, operand)
        pieces: list[n.Getitem | n.Filter] = [*template.find_all(n.Getitem)]
        pieces += template.find_all(n.Filter)
        keyed = [node.node for node in template.find_all(n.Getattr)]
        keyed += [node.node for node in template.find_all(n.Getitem) if _key(node)]
        of_lists = set(map(id, keyed))  # of a content that is a list, and no text
        for taken in pieces:
            if id(taken) not in of_lists and self._takes_piece(taken):
                raise _Unknown
        sums = (
            *template.find_all(n.Mod),
            *template.find_all(n.Div),
            *template.find_all(n.FloorDiv),
        )
        tests = [test for test in template.find_all(n.Test) if test.name in _OF_NUMBERS]
        if any(map(self._measures, (*sums, *tests))):
            raise _Unknown
        written = [id(node) for node in _written(template.find_all(n.Output))]
        for added in template.find_all((n.Add, n.Concat)):
            has_text = any(map(self.is_text, added.iter_child_nodes()))
            self.joins |= has_text and id(added) not in written

    def _compared(self, left: n.Node, operand: n.Operand) -> None:
        right = operand.expr
        if operand.op in ("in", "notin"):
            if isinstance(right, n.Const) and not isinstance(left, n.Const) and self.is_text(left):
                raise _Unknown
            if self.is_text(right):
                self._held(left, isinstance(right, n.Name) and right.name in self.parts)
            return
        for side, other in ((left, right), (right, left)):
            if not isinstance(side, n.Const):
                continue
            if isinstance(side.value, str) and side.value.strip() and self.is_text(other):
                if not _NAME.fullmatch(side.value):
                    self.cut.add(side.value)  # a part of a text may be compared with it
            elif type(side.value) is int and side.value and self._measures(other):
                raise _Unknown
        if not isinstance(left, n.Const) or not isinstance(right, n.Const):
            has_number = any(isinstance(s, n.Const) and type(s.value) is int for s in (left, right))
            if operand.op not in ("eq", "ne") and not has_number and self._orders(left, right):
                raise _Unknown
        both = not isinstance(left, n.Const) and not isinstance(right, n.Const)
        self.distinct |= both and self.is_text(left) and self.is_text(right)

    def _filter(self, node: n.Filter) -> None:
        if node.name in _CASES and (node.node is None or self.is_said(node.node)):
            raise _Unknown
        if node.name not in _FILTERS | _CASES:
            raise _Unknown
        if node.name == "trim":
            self._stripped(node.args)
        elif node.name == "replace":
            self._looked_for(node.args)

    def _call(self, node: n.Call) -> None:
        called = node.node
        if isinstance(called, n.Name):
            if called.name == "lipsum":
                raise _Unknown
            return
        if not isinstance(called, n.Getattr):
            return
        name = called.attr
        if name in _CASES and not self.is_said(called.node):
            return
        if name not in _METHODS:
            raise _Unknown
        if name in _STRIPS:
            self._stripped(node.args)
        elif name in _CUTS and self.is_text(called.node):
            self._looked_for(node.args)
        else:
            self.distinct |= name in ("index", "count")

    def is_text(self, node: n.Node) -> bool:
        """Return whether an expression may be made of a text."""
        return not self.texts.isdisjoint(_names(node))

    def is_said(self, node: n.Node) -> bool:
        """Return whether an expression may be a text, and not what kind of message it is of."""
        return _key(node) not in _CASELESS and self.is_text(node)

    def _measures(self, node: n.Node) -> bool:
        """Return whether an expression may be made of the length of a text."""
        return any(
            isinstance(item, n.Filter)
            and item.name in _SHORTER
            and item.node is not None
            and self.is_text(item.node)
            for item in _within(node)
        )

    def _orders(self, *sides: n.Node) -> bool:
        """Return whether texts, or their lengths, are compared by more than whether they are equal:
        what a template makes of a text, True or False, is not."""
        return any(self.is_text(side) and not isinstance(side, n.NSRef) for side in sides)

    def _takes_piece(self, node: n.Getitem | n.Filter) -> bool:
        """Return whether an expression takes a character or a stretch of a text by its place, or
        the first of some texts, and not what stands between the words that it is cut at."""
        whole = node.node
        if whole is None or not self.is_text(whole):
            return False
        if isinstance(whole, n.Call) and isinstance(whole.node, n.Getattr):
            return whole.node.attr not in _CUTS
        if isinstance(node, n.Filter):
            return node.name in _PIECES
        return not (isinstance(node.arg, n.Const) and isinstance(node.arg.value, str))

    def _stripped(self, args: Sequence[n.Node]) -> None:
        for arg in args:
            if not isinstance(arg, n.Const) or not isinstance(arg.value, str):
                raise _Unknown
            if not arg.value.isspace():  # white space at the ends of texts is in their shape
                self.cut.update(arg.value)

    def _held(self, word: n.Node, in_part: bool) -> None:
        """`word` is looked for in what may be a text, a part of a content or a message."""
        if isinstance(word, n.Name) and word.name in self.words:
            words = self.words[word.name]
        elif isinstance(word, n.Const):
            words = {word.value} if isinstance(word.value, str) else set()
        else:
            raise _Unknown
        self.held |= {word for word in words if len(word) == 1 or not in_part}

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


def _strings(node: n.Node) -> Iterator[str]:
    """All words of a template but those that it only writes, or looks values up by."""
    skipped: Sequence[n.Node] = []
    if isinstance(node, n.Output | n.Concat | n.Add | n.Getitem):
        skipped = list(node.iter_child_nodes())
    elif isinstance(node, n.Call) and isinstance(node.node, n.Getattr):
        skipped = node.args[: node.node.attr in ("get", "pop")]
    elif isinstance(node, n.Call) and isinstance(node.node, n.Name):
        skipped = node.args if node.node.name == "raise_exception" else []
    for child in node.iter_child_nodes():
        if not isinstance(child, n.Const):
            yield from _strings(child)
        elif isinstance(child.value, str) and not any(child is each for each in skipped):
            yield child.value


def _written(nodes: Iterable[n.Node]) -> Iterator[n.Node]:
    """Expressions of which nothing is done but to write them down."""
    for node in nodes:
        if isinstance(node, n.Output | n.Add | n.Concat):
            yield node
            yield from _written(node.iter_child_nodes())
        elif isinstance(node, n.CondExpr):
            yield from _written(filter(None, (node.expr1, node.expr2)))


def _within(node: n.Node) -> Iterator[n.Node]:
    yield node
    for child in node.iter_child_nodes():
        yield from _within(child)


def _key(node: n.Node) -> Any:
    if isinstance(node, n.Getattr):
        return node.attr
    return node.arg.value if isinstance(node, n.Getitem) and isinstance(node.arg, n.Const) else None


def _bindings(template: n.Template) -> Iterator[tuple[n.Node, n.Node, bool]]:
    """Targets of assignments and loops and arguments of macros, what they are given, and whether
    that is looped over."""
    for node in template.find_all(n.Assign):
        yield node.target, node.node, False
    for loop in template.find_all(n.For):
        yield loop.target, loop.iter, True
    macros = {macro.name: macro for macro in template.find_all(n.Macro)}
    for macro in macros.values():
        for arg, value in zip(reversed(macro.args), reversed(macro.defaults), strict=False):
            yield arg, value, False
    for call in template.find_all(n.Call):
        called = macros.get(call.node.name) if isinstance(call.node, n.Name) else None
        for arg, value in zip(called.args if called else (), call.args, strict=False):
            yield arg, value, False
        for given in call.kwargs if called else ():
            yield n.Name(given.key, "param"), given.value, False


def _words(template: n.Template) -> dict[str, set[str]]:
    """Names that are nothing but words of the template's own."""
    words: dict[str, set[str]] = {}
    others: set[str] = set()
    for target, given, is_loop in _bindings(template):
        items = given.items if isinstance(given, n.List | n.Tuple) else [given]
        said = [item.value for item in items if isinstance(item, n.Const)]
        is_listed = isinstance(given, n.List | n.Tuple)
        if isinstance(target, n.Name) and is_loop == is_listed and len(said) == len(items):
            words.setdefault(target.name, set()).update(map(str, said))
        else:
            others |= _names(target)
    return {name: said for name, said in words.items() if name not in others}


def _parts(template: n.Template) -> set[str]:
    """Names of nothing but a content's parts, or a text's characters, which hold no word."""
    bindings = list(_bindings(template))
    if any(isinstance(target, n.NSRef) and target.attr == "content" for target, _, _ in bindings):
        return set()  # a content may be the template's own
    contents = {name for target, _, _ in bindings for name in _names(target)}

    def is_content(node: n.Node) -> bool:
        is_read = isinstance(node, n.Getattr | n.Getitem) and _key(node) == "content"
        return is_read or (isinstance(node, n.Name) and node.name in contents)

    def only(loops: bool) -> set[str]:
        """Names that are given nothing but contents, in this way."""
        given = [(target, value) for target, value, is_loop in bindings if is_loop == loops]
        others = {name for target, _, loop in bindings if loop != loops for name in _names(target)}
        others |= {
            name for target, value in given if not is_content(value) for name in _names(target)
        }
        return {name for target, _ in given for name in _names(target)} - others

    while contents != (fewer := contents & only(loops=False)):
        contents = fewer
    return only(loops=True)


def _texts(template: n.Template) -> set[str]:
    """Names and keys of what may be made of a text."""
    texts, size = set(_CONTENT), 0
    while len(texts) > size:
        size = len(texts)
        for target, given, _ in _bindings(template):
            if _names(given) & texts:
                texts |= _names(target) - {"ns", "namespace"}
    return texts


def _names(node: n.Node) -> set[Any]:
    """The names and keys in an expression."""
    found = {_key(item) for item in _within(node)} - {None}
    found |= {item.name for item in _within(node) if isinstance(item, n.Name)}
    return found | {item.attr for item in _within(node) if isinstance(item, n.NSRef)}
