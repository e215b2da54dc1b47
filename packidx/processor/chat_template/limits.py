"""What a chat template may take: it is foreign code, and must come to an end.

A text above `MAX_TEXT` characters is refused: that depends on the record and the template alone, so
the record is rejected. How long a rendering takes, and whether memory lasts, depends on the machine
too: neither is a verdict on a record, so both end the run.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from packidx.errors import BadRecord, LimitError

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
