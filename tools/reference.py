"""Write docs/cli.md and docs/api.md: what the program says of itself.

    python tools/reference.py docs/cli.md docs/api.md

`make docs` runs this; a test fails where the pages are not what it would write.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from packidx_cli.main import cli

WIDTH = 140
MODULES = (
    "packidx",
    "packidx.torch",
    "packidx.torch.loss",
    "packidx.encode",
    "packidx.trainers.huggingface",
    "packidx.recipe",
    "packidx.inspect.trace",
    "packidx.inspect.verify",
    "packidx.errors",
)
"""What users import."""

CLI_HEAD = """# Command line

<!-- written by `make docs` -->
What `--help` says of each command. Exit status: 0 done; 1 an error, one sentence on stderr; 2
usage; 3 a verification that failed. Results go to stdout, progress and warnings to stderr.

Your shell completes commands, options and their values once its start-up file has one of these:

```text
eval "$(_PACKIDX_COMPLETE=bash_source packidx)"             # ~/.bashrc
eval "$(_PACKIDX_COMPLETE=zsh_source packidx)"              # ~/.zshrc
_PACKIDX_COMPLETE=fish_source packidx | source              # ~/.config/fish/config.fish
```
"""

API_HEAD = """# Python

<!-- written by `make docs` -->
Public names, and how their docstrings begin; `help(name)` has all of them. Every error that is
raised on purpose is a `PackidxError`.
"""


def commands(
    group: click.Group, context: click.Context, path: str
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Every command by its whole name, groups included."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        whole = f"{path} {name}"
        inner = command.context_class(
            command, info_name=name, parent=context, **command.context_settings
        )
        inner.terminal_width = inner.max_content_width = WIDTH
        yield whole, command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner, whole)


def cli_page() -> str:
    """docs/cli.md."""
    context = click.Context(cli, info_name="packidx", **cli.context_settings)
    context.terminal_width = context.max_content_width = WIDTH
    parts = [CLI_HEAD, "\n## packidx\n\n```text\n", _help(cli, context), "\n```\n"]
    for name, command, inner in commands(cli, context, "packidx"):
        parts += [f"\n## {name}\n\n```text\n", _help(command, inner), "\n```\n"]
    return "".join(parts)


def _help(command: click.Command, context: click.Context) -> str:
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


def api_page() -> str:
    """docs/api.md."""
    parts = [API_HEAD]
    for name in MODULES:
        module = import_module(name)
        parts.append(f"\n## {name}\n\n{_first(module)}\n")
        public = getattr(module, "__all__", None) or _defined(module)
        for member in sorted(public, key=str.lower):
            value = getattr(module, member)
            if inspect.isclass(value) or inspect.isfunction(value):
                parts.append(f"\n### {name}.{member}\n\n{_described(member, value)}")
    return "".join(parts)


def _defined(module: Any) -> list[str]:
    own = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and getattr(value, "__module__", "").startswith("packidx")
        and (inspect.isclass(value) or inspect.isfunction(value))
    ]
    return own


def _described(name: str, value: Any) -> str:
    signature = _signature(name, value)
    shown = "" if signature == name else textwrap.indent(signature, "    ") + "\n\n"
    text = f"{shown}{_first(value)}\n"
    if not inspect.isclass(value):
        return text
    rows = [
        f"- `{member}`: {_first(each)}\n"
        for member, each in sorted(vars(value).items())
        if not member.startswith("_") and (callable(each) or isinstance(each, property))
        if inspect.getdoc(each)
    ]
    return text + ("\n" + "".join(rows) if rows else "")


def _signature(name: str, value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    if inspect.isclass(value) and issubclass(value, BaseException):
        return name
    stated = [_stated(parameter) for parameter in signature.parameters.values()]
    back = signature.return_annotation
    back = back if inspect.isclass(value) or not isinstance(back, str) else _Words(back)
    signature = signature.replace(
        parameters=stated,
        return_annotation=inspect.Signature.empty if inspect.isclass(value) else back,
    )
    line = f"{name}{signature}"
    if len(line) <= WIDTH - 4:
        return line
    parameters, star = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            parameters.append("*")
        star |= parameter.kind in (
            inspect.Parameter.KEYWORD_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
        )
        parameters.append(str(parameter))
    back = signature.return_annotation
    end = "" if back is inspect.Signature.empty else f" -> {back!r}"
    whole = ", ".join(parameter.replace(" ", "\0") for parameter in parameters)
    filled = textwrap.wrap(whole, WIDTH - 8, break_long_words=False)
    return f"{name}(\n    " + "\n    ".join(filled).replace("\0", " ") + f"\n){end}"


class _Words:
    """What is printed as it stands."""

    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def _stated(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter whose annotation is printed without quotes, and a function as ``...``."""
    kind, default = parameter.annotation, parameter.default
    if isinstance(kind, str):
        parameter = parameter.replace(annotation=_Words(kind))
    if inspect.isfunction(default):
        parameter = parameter.replace(default=_Words("..."))
    return parameter


def _first(value: Any) -> str:
    """The first paragraph of a docstring, in one line."""
    text = inspect.getdoc(value) or ""
    return " ".join(text.split("\n\n")[0].split())


def main() -> None:
    """Write the pages that are named."""
    pages = {"cli.md": cli_page, "api.md": api_page}
    for argument in sys.argv[1:]:
        path = Path(argument)
        path.write_text(pages[path.name](), encoding="utf-8")


if __name__ == "__main__":
    main()
