"""`packidx recipe`: another trainer's file becomes a recipe."""

from __future__ import annotations

import os

import click

from packidx.errors import OptionError

from ..show.console import print_text, say


@click.command()
@click.argument("file")
@click.option("-o", "--output", metavar="FILE", help="Where the recipe goes; else it is printed.")
@click.option(
    "--config-format",
    metavar="TRAINER",
    help="Whose file it is, where its keys do not say: nemo, lmms, loongforge, axolotl, "
    "llamafactory, swift, trl or internvl.",
)
def recipe(file: str, output: str | None, config_format: str | None) -> None:
    """Make a recipe for `packidx pack` of the FILE that another trainer trains with.

    \b
    packidx recipe train.yaml -o recipe.yaml
    packidx pack recipe.yaml

    FILE is YAML or JSON of NeMo Automodel, LMMS Engine, LoongForge, axolotl, LLaMA-Factory,
    ms-swift or TRL, or a meta file that names data, as InternVL has it. Whatever of it the recipe
    does not say stands in comments at the recipe's top, and is told on stderr; what is still to be
    filled in begins with TODO.
    """
    from packidx.recipe.peers.read import imported

    made = imported(file, config_format)
    if output is None:
        print_text(made.text)
    else:
        _write(output, made.text)
    for sentence in made.lost:
        say(f"note: {file}: {sentence}", err=True)
    if made.todo:
        at = "note" if output is None else output
        say(f"{at}: still to be filled in: {', '.join(made.todo)}", err=output is None)
    elif output is not None:
        say(f"{output} is a recipe: packidx pack {output}")


def _write(path: str, text: str) -> None:
    """Write a recipe; a file that says something else stays as it is."""
    from packidx.io.files import write_atomic

    data = text.encode()
    if os.path.isdir(path):
        raise OptionError(f"{path} is a folder: name a file")
    if os.path.lexists(path):
        with open(path, "rb") as there:
            if there.read() == data:
                return
        raise OptionError(f"{path} is there and says something else: give another -o, or remove it")
    write_atomic(path, data)
