"""`packidx push`: a snapshot as a data set of the Hub."""

from __future__ import annotations

import click

from ..options import json_option, option
from ..show import console


@click.command()
@click.argument("index")
@click.argument("repository", metavar="ORG/NAME")
@option("--revision BRANCH", "Branch to commit to; the main one by default.")
@option("--licence NAME", "Licence of the data set, in the Hub's words: cc-by-4.0.")
@option("--private", "Make the repository private, if it is not there yet.", is_flag=True)
@json_option
def push(
    index: str, repository: str, revision: str | None, licence: str | None, private: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Publish INDEX, or INDEX@ID, as a data set of the Hugging Face Hub.

    Its tables become configs of the data set viewer: packs, samples and dropped. Readers open it by
    the URL that is printed. Keys of samples and paths of shards are in it.
    """
    from packidx.inspect.hub import push_to_hub

    with console.show_status() as progress:
        url = push_to_hub(
            index,
            repository,
            revision=revision,
            licence=licence,
            private=private,
            progress=progress,
        )
    if as_json:
        console.print_json({"url": url})
    else:
        console.print_line(f'pushed: {url}\nread it: PackedDataset("{url}", encode)', lines=True)
