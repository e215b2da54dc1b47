"""`packidx verify`: a snapshot against its own promises and its data."""

from __future__ import annotations

from typing import Any

import click


@click.command()
@click.argument("index")
@click.option("--processor", metavar="DIR_OR_NAME", help="The processor that counted the lengths.")
@click.option("--sample", "num_sampled", default=0, metavar="N", help="Encode N samples for real.")
@click.option("--seed", default=0, show_default=True, help="Which samples.")
@click.option(
    "--root", "roots", multiple=True, metavar="OLD=NEW", help="Where moved data lies now."
)
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    index: str,
    processor: str | None,
    num_sampled: int,
    seed: int,
    roots: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """Check INDEX or INDEX@ID: files, sums, every sample once, shards; exit 3 if anything is wrong.

    With --processor also its fingerprint, and with --sample N the lengths of N samples encoded by
    the real transformers processor.
    """
    from packidx.errors import OptionError, VerificationError
    from packidx.index import open_index
    from packidx.verify import verify as run

    from .console import print_json, print_table, status
    from .roots import parse_roots

    if num_sampled < 0:
        raise OptionError(f"--sample is {num_sampled}: give the number of samples to encode")
    opened = open_index(index, parse_roots(roots))
    checks = []
    with status(quiet) as doing:
        for check in run(opened, encoder=_encoder(processor), num_sampled=num_sampled, seed=seed):
            checks.append(check)
            doing(f"{len(checks)} checks done, {check.name} last")
    failed = [check for check in checks if not check.ok]
    if as_json:
        listed = [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in checks]
        print_json({"snapshot_id": opened.id, "ok": not failed, "checks": listed})
    else:
        rows = [["ok" if one.ok else "FAILED", one.name, one.detail] for one in checks]
        print_table(["", "check", "what was seen"], rows, right=3)
    if failed:
        names = ", ".join(one.name for one in failed)
        raise VerificationError(f"{opened.path}@{opened.id[:12]} is not as it should be: {names}")


def _encoder(processor: str | None) -> Any:
    if processor is None:
        return None
    from packidx.encode import ProcessorEncoder

    return ProcessorEncoder(processor)
