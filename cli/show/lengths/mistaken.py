"""What to type for sources whose records have a shape that is not known."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..console import count, number_of, say

if TYPE_CHECKING:
    from packidx.estimate.mistaken import Mistaken

_SKETCH = (
    "def known(record, rng):  # in mymodule.py; record is as it stands in the file",
    '    turns = [{"role": "user", "content": …}, {"role": "assistant", "content": …}]',
    '    return {"messages": turns, "images": […]}',
)


def print_mistaken(
    sources: Sequence[Mistaken], command: Sequence[str] | None, is_only_one: bool
) -> None:
    """Lines on stderr for each source.

    Args:
        command: the arguments that were given, None where they are not known.
        is_only_one: whether they are about one source.
    """
    for source in sources:
        number = f"{count(source.num_rejected)} of {number_of(source.num_samples, 'record')}"
        say(f"hint: {number} of {source.source} are rejected for their shape.", err=True)
        say(f"  {source.record} holds {source.keys}", err=True)
        if source.nearest is None and 2 * source.num_rejected < source.num_samples:
            say("  The others are read: what do these lack? An empty cell is none.", err=True)
            continue
        if source.nearest is None:
            text = "No layout of docs/data.md fits: mend such records, or let a function make one"
            say(f"  {text} of them:", err=True)
            for line in _SKETCH:
                say(f"      {line}", err=True)
            say("  and then: --transform mymodule:known", err=True)
            continue
        options = shlex.join(source.options)
        if "--pair" in source.options:
            options += " (or rejected, or both)"
        if command is None or not is_only_one or "--pair" in source.options:
            where = "" if is_only_one else ", for this source alone or in its entry of a mix"
            say(f"  It may be {source.nearest}. Add{where}: {options}", err=True)
            say(f"  Then it is read as {source.sample}", err=True)
        else:
            asked = [word for word in command if word not in ("--json", "--quiet", "-q")]
            can_show = "estimate" in asked[:1] and "--processor" in asked
            show = ["--show", "3"] if can_show and "--show" not in asked else []
            line = shlex.join([*asked, *source.options, *show])
            say(f"  It may be {source.nearest}. Is this what you mean?", err=True)
            say(f"      {source.sample}", err=True)
            say("  Then type:", err=True)
            say(f"      packidx {line}", err=True)
