"""What a chat template may take: it is foreign code, and must not eat a machine.

A text above `MAX_TEXT` characters is refused wherever the template makes one: by what the template
writes, by operators, by methods of texts, by filters. That depends on the record and the template
alone, so the record is rejected. How long a rendering takes, and whether memory lasts, depends on
the machine too: neither is a verdict on a record, so both end the run.
"""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from operator import methodcaller
from types import FrameType
from typing import Any, TypeVar

import jinja2.compiler
import jinja2.exceptions
import jinja2.filters
import jinja2.nodes
import jinja2.sandbox

from packidx.errors import BadRecord, LimitError
from packidx.processor.chat_template.bounds import (
    FILTER_BOUNDS,
    METHOD_BOUNDS,
    format_bound,
    text_length,
)

MAX_TEXT = 1 << 27
"""Characters of a text: some 30 million tokens, above what any model is trained on."""
MAX_SECONDS = 60.0
"""CPU time of one conversation's rendering; the usual one takes some ten microseconds."""
_MAX_BITS = 1 << 20  # of an integer that a template computes
_MAX_INDENT = 1000
_MAX_TEXTS = 1 << 22
_OPERATORS = frozenset(("*", "**", "%", "+"))
Result = TypeVar("Result")


class TooLarge(jinja2.exceptions.SecurityError):
    """A template makes a text above `MAX_TEXT` characters."""

    def __init__(self) -> None:
        super().__init__(f"it makes a text of more than {MAX_TEXT:,} characters")


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


def concat(texts: Iterable[str]) -> str:
    """``"".join(texts)``, which stops where it becomes too large."""
    joined = io.StringIO()
    size = 0
    for text in texts:
        size += len(text)
        if size > MAX_TEXT:
            raise TooLarge
        joined.write(text)
    return joined.getvalue()


def check_indent(indent: int | str | None) -> None:
    """Refuse JSON that is indented without measure.

    Raises:
        TooLarge: it is.
    """
    if (len(indent) if isinstance(indent, str) else indent or 0) > _MAX_INDENT:
        raise TooLarge


def limited_method(name: str, *args: Any) -> Callable[[str], Any]:
    """A method of str, as `methodcaller`, that is refused where its result would be too large."""
    call, size = methodcaller(name, *args), METHOD_BOUNDS.get(name)
    if size is None:
        return call

    def limited(text: str) -> Any:
        _check(size, text, *args)
        return call(text)

    return limited


class Buffer(list[str]):
    """What a macro or block has written so far, traced or not; too much of it is `TooLarge`."""

    size = 0

    def append(self, text: str) -> None:
        self.size += text_length(text)
        if self.size > MAX_TEXT or len(self) > _MAX_TEXTS:
            raise TooLarge
        super().append(text)

    def extend(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.append(text)


class LimitedGenerator(jinja2.compiler.CodeGenerator):
    """Writes code that collects texts in a `Buffer`, and joins by the environment's `concat`."""

    begin_concat = "concat(map(str, ("

    def buffer(self, frame: Any) -> None:
        frame.buffer = self.temporary_identifier()
        self.writeline(f"{frame.buffer} = environment.buffer()")

    def visit_Concat(self, node: Any, frame: Any) -> None:
        self.write(self.begin_concat)
        for child in node.nodes:
            self.visit(child, frame)
            self.write(", ")
        self.write(")))")


class LimitedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A sandbox in which no text becomes too large."""

    code_generator_class = LimitedGenerator
    buffer = Buffer
    intercepted_binops = _OPERATORS
    concat = staticmethod(concat)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters |= {name: _limited(name, self.filters[name]) for name in FILTER_BOUNDS}
        self.filters["join"] = _join

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        check_binop(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        # `str.format` comes wrapped by the sandbox.
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if type(owner) is str:
            name = function.__name__
            if name == "join" and len(args) == 1:
                return concat(_between(owner, args[0]))
            if (size := METHOD_BOUNDS.get(name)) is not None:
                _check(size, owner, *args, **{k: v for k, v in kwargs.items() if k[0] != "_"})
        return super().call(context, function, *args, **kwargs)


def check_binop(operator: str, left: Any, right: Any) -> None:
    """Refuse what an operator would make too large.

    Raises:
        TooLarge: it would.
    """
    sized, size = (str, list, tuple), 0
    if operator == "%":
        if isinstance(left, str):
            _check(format_bound, left, *(right if isinstance(right, tuple) else (right,)))
    elif operator == "+":
        if isinstance(left, sized) and isinstance(right, sized):
            size = text_length(left) + text_length(right)
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        bits = bits * right if operator == "**" else bits + right.bit_length()
        if bits > _MAX_BITS:
            raise TooLarge
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(value, sized) and isinstance(times, int):
                size = text_length(value) * times
    if size > MAX_TEXT:
        raise TooLarge


def _check(size: Callable[..., int], *args: Any, **kwargs: Any) -> None:
    try:
        length = size(*args, **kwargs)
    except (TypeError, ValueError, AttributeError):
        return  # wrong arguments: the call itself says so
    if length > MAX_TEXT:
        raise TooLarge


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is told before it makes a text that is too large."""
    size = FILTER_BOUNDS[name]
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # the environment or context

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check(size, *args[first:], **kwargs)
        return function(*args, **kwargs)

    return checked


@jinja2.pass_environment
def _join(environment: Any, value: Any, d: Any = "", attribute: Any = None) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return concat(_between(str(d), map(str, value)))


def _between(separator: str, items: Iterable[Any]) -> Iterator[str]:
    for number, item in enumerate(items):
        if not isinstance(item, str):
            text = f"sequence item {number}: expected str instance, {type(item).__name__} found"
            raise TypeError(text)
        if number:
            yield separator
        yield item


def check_unicode(text: str) -> None:
    """Refuse a text that cannot be encoded.

    Raises:
        BadRecord: ``bad_text``, it holds half a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRecord("bad_text", f"the text is not valid Unicode: {error}") from error
