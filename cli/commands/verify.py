"""`packidx verify`: a snapshot against its own promises and its data."""

from __future__ import annotations

from typing import Any

import click

from packidx.errors import OptionError, VerificationError

from ..options import index_options, make_encoder, refuse_two_encoders
from ..show.console import print_json, print_table, status


@click.command()
@click.argument("index")
@click.option("--sample", "num_sampled", default=0, metavar="N", help="Encode N samples for real.")
@click.option("--seed", default=0, show_default=True, help="Which samples.")
@index_options
def verify(
    index: str,
    processor: str | None,
    processor_settings: dict[str, Any],
    encode: str | None,
    transform: str | None,
    num_sampled: int,
    seed: int,
    roots: dict[str, str],
    quiet: bool,
    as_json: bool,
) -> None:
    """Check INDEX or INDEX@ID: files, sums, every sample once, shards; exit 3 if anything is wrong.

    With --processor or --encode also its fingerprint, and with --sample N the lengths of N samples
    encoded for real.
    """
    from packidx.index import open_index
    from packidx.inspect.verify import verify as run
    from packidx.user_code.named import load_named

    if num_sampled < 0:
        raise OptionError(f"--sample is {num_sampled}: give the number of samples to encode")
    refuse_two_encoders(processor, encode)
    opened = open_index(index, roots)
    encoder: Any = None
    if processor is not None:
        counted = opened.snapshot.lengths.encoder
        labels = None if counted is None else counted.labels
        planned = None if counted is None else counted.overrides
        encoder = make_encoder(processor, labels, processor_settings or planned or {})
    elif encode is not None:
        encoder = load_named(encode, "--encode")
    checks = []
    with status(quiet) as doing:
        for check in run(
            opened, encoder=encoder, transform=transform, num_sampled=num_sampled, seed=seed
        ):
            checks.append(check)
            doing(f"{len(checks)} checks done, {check.name} last")
    failed = [check for check in checks if not check.ok]
    if as_json:
        listed = [{"name": check.name, "ok": check.ok, "detail": check.detail} for check in checks]
        print_json({"snapshot_id": opened.id, "ok": not failed, "checks": listed})
    else:
        rows = [["ok" if check.ok else "FAILED", check.name, check.detail] for check in checks]
        print_table(["", "check", "what was seen"], rows, right=3)
    if failed:
        names = ", ".join(check.name for check in failed)
        raise VerificationError(f"{opened.path}@{opened.id[:12]} is not as it should be: {names}")
